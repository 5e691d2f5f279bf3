//! A fake of the part of the API server that a node's pod uses: getting, listing, watching and patching in one
//! namespace.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::stream;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use messina_api::names::{annotation, label};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::server::{self, Body, Handler, response};

pub(crate) struct FakeApi {
    /// By kind and name.
    objects: Mutex<BTreeMap<(String, String), Value>>,
    changes: broadcast::Sender<(String, Value)>,
    version: Mutex<u64>,
    /// Every patch that was accepted.
    patches: Mutex<Vec<Value>>,
    is_unavailable: AtomicBool,
}

impl FakeApi {
    /// Starts an API server, and writes a kubeconfig for it.
    pub(crate) fn start(kubeconfig: &Path) -> Arc<Self> {
        let api = Arc::new(Self {
            objects: Mutex::default(),
            changes: broadcast::channel(64).0,
            version: Mutex::new(100),
            patches: Mutex::default(),
            is_unavailable: AtomicBool::new(false),
        });
        let address = server::serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), api.clone());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "it", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "shop"}}],
        });
        std::fs::write(kubeconfig, config.to_string()).unwrap();
        api
    }

    /// Creates or replaces an object. `kind` is pods or services.
    pub(crate) fn put(&self, kind: &str, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut version = self.version.lock().unwrap();
        *version += 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object["metadata"]["namespace"] = json!("shop");
        object["apiVersion"] = json!("v1");
        object["kind"] = json!(if kind == "pods" { "Pod" } else { "Service" });
        let old = self.objects.lock().unwrap().insert((kind.to_owned(), name), object.clone());
        let event = json!({"type": if old.is_some() { "MODIFIED" } else { "ADDED" }, "object": object});
        let _ = self.changes.send((kind.to_owned(), event));
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(&(kind.to_owned(), name.to_owned())).cloned()
    }

    pub(crate) fn edit(&self, kind: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self.get(kind, name).unwrap();
        edit(&mut object);
        self.put(kind, object);
    }

    pub(crate) fn patches(&self) -> Vec<Value> {
        self.patches.lock().unwrap().clone()
    }

    /// Sets whether requests get status 503 from now on. Open watches get no events then.
    pub(crate) fn set_unavailable(&self, is_unavailable: bool) {
        self.is_unavailable.store(is_unavailable, Ordering::SeqCst);
    }

    fn list(&self, kind: &str, query: &BTreeMap<String, String>) -> Response<Body> {
        let objects = self.objects.lock().unwrap();
        let all = objects.iter().filter(|((of, _), object)| of == kind && is_selected(object, query));
        let items: Vec<_> = all.map(|(_, object)| object.clone()).collect();
        let version = self.version.lock().unwrap().to_string();
        response(
            200,
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items})
                .to_string(),
        )
    }

    fn watch(&self, kind: &str, query: BTreeMap<String, String>) -> Response<Body> {
        let kind = kind.to_owned();
        // First the changes between the list and the watch.
        let since: u64 = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or_default();
        let objects = self.objects.lock().unwrap();
        let is_new = |object: &Value| {
            let version = object["metadata"]["resourceVersion"].as_str();
            version.and_then(|version| version.parse::<u64>().ok()).is_some_and(|version| version > since)
        };
        let missed: Vec<_> = objects
            .iter()
            .filter(|((of, _), object)| *of == kind && is_new(object) && is_selected(object, &query))
            .map(|(_, object)| json!({"type": "MODIFIED", "object": object}))
            .collect();
        let changes = self.changes.subscribe();
        let events = stream::unfold((missed.into_iter(), changes), move |(mut missed, mut changes)| {
            let (kind, query) = (kind.clone(), query.clone());
            async move {
                let event = loop {
                    if let Some(event) = missed.next() {
                        break event;
                    }
                    let (of, event) = changes.recv().await.ok()?;
                    if of == kind && is_selected(&event["object"], &query) {
                        break event;
                    }
                };
                let line = Frame::data(Bytes::from(format!("{event}\n")));
                Some((Ok::<_, Infallible>(line), (missed, changes)))
            }
        });
        Response::new(BodyExt::boxed(StreamBody::new(Box::pin(events))))
    }

    fn patch(&self, kind: &str, name: &str, patch: Value) -> Response<Body> {
        let Some(mut object) = self.get(kind, name) else { return not_found() };
        let version = &patch["metadata"]["resourceVersion"];
        let is_another_version = !version.is_null() && *version != object["metadata"]["resourceVersion"];
        if patch["metadata"]["uid"] != object["metadata"]["uid"] || is_another_version {
            return response(
                409,
                r#"{"kind":"Status","status":"Failure","reason":"Conflict","code":409,"message":"uid"}"#,
            );
        }
        assert_allowed(&patch);
        merge(&mut object, &patch);
        self.patches.lock().unwrap().push(patch);
        self.put(kind, object);
        response(200, self.get(kind, name).unwrap().to_string())
    }
}

impl Handler for FakeApi {
    async fn handle(&self, request: Request<Bytes>) -> Response<Body> {
        if self.is_unavailable.load(Ordering::SeqCst) {
            return response(503, r#"{"kind":"Status","status":"Failure","reason":"ServiceUnavailable","code":503}"#);
        }
        let path = request.uri().path().trim_start_matches("/api/v1/namespaces/shop/").to_owned();
        let query = request.uri().query().unwrap_or_default();
        let query: BTreeMap<_, _> = query
            .split('&')
            .filter_map(|part| part.split_once('='))
            .map(|(key, value)| (key.to_owned(), decoded(value)))
            .collect();
        match (request.method(), path.split_once('/')) {
            (&Method::GET, None) if query.get("watch").is_some_and(|value| value == "true") => self.watch(&path, query),
            (&Method::GET, None) => self.list(&path, &query),
            (&Method::GET, Some((kind, name))) => {
                self.get(kind, name).map_or_else(not_found, |object| response(200, object.to_string()))
            }
            (&Method::PATCH, Some((kind, name))) => {
                self.patch(kind, name, serde_json::from_slice(request.body()).unwrap())
            }
            _ => not_found(),
        }
    }
}

/// Asserts that the admission policy for nodes in `deploy/operator.yaml` allows a patch.
fn assert_allowed(patch: &Value) {
    let keys =
        |pointer: &str| patch.pointer(pointer).and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key);
    let is_in_metadata = |key: &str| ["uid", "resourceVersion", "labels", "annotations"].contains(&key);
    let is_allowed = keys("").all(|key| key == "metadata")
        && keys("/metadata").all(|key| is_in_metadata(key))
        && keys("/metadata/labels").all(|key| key == label::DECOMMISSIONED)
        && keys("/metadata/annotations").all(|key| annotation::BY_SIDECAR.contains(&key.as_str()));
    assert!(is_allowed, "the API server would refuse {patch}");
}

fn not_found() -> Response<Body> {
    response(404, r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404,"message":"not found"}"#)
}

fn is_selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let terms = |key: &str| query.get(key).cloned().unwrap_or_default();
    let (fields, labels) = (terms("fieldSelector"), terms("labelSelector"));
    let named = |term: &str| {
        let name = term.strip_prefix("metadata.name=").expect("only names are selected");
        object["metadata"]["name"] == name
    };
    let labelled = |term: &str| {
        let (key, value) = term.split_once('=').expect("only equality is selected");
        object["metadata"]["labels"][key] == value
    };
    fields.split(',').filter(|term| !term.is_empty()).all(named)
        && labels.split(',').filter(|term| !term.is_empty()).all(labelled)
}

fn merge(object: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (name, field) in fields {
                merge(&mut object[name], field);
            }
            // null removes a field.
            object.as_object_mut().unwrap().retain(|_, field| !field.is_null());
        }
        other => *object = other.clone(),
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = vec![];
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).unwrap()
}
