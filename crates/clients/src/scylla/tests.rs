#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{error::Error as _, net::Ipv4Addr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use super::*;

/// Starts a node that sends the same response to every request, or none. Returns a client and the first lines of the
/// requests that the node receives.
async fn start_node(response: Option<&'static str>) -> (Node, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let node = Node::at(listener.local_addr().unwrap());
    let (recorded, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut silent = vec![];
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![];
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let request = String::from_utf8(request).unwrap();
            // Not every test reads the requests.
            let _ = recorded.send(request.lines().next().unwrap().to_owned());
            match response {
                // The client may close the connection before the end.
                Some(response) => drop(stream.write_all(response.as_bytes()).await),
                None => silent.push(stream),
            }
        }
    });
    (node, requests)
}

macro_rules! ok {
    ($body:literal) => {
        Some(concat!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", $body))
    };
}

#[tokio::test]
async fn responses_of_scylladb_are_decoded() {
    let (node, _) = start_node(ok!("\"NORMAL\"")).await;
    assert_eq!(node.operation_mode().await.unwrap(), "NORMAL");
    let (node, _) = start_node(ok!("true")).await;
    assert!(node.has_native_transport().await.unwrap());
    let (node, _) = start_node(ok!(r#"[{"key": "10.0.0.1", "value": "a"}]"#)).await;
    assert_eq!(node.host_ids().await.unwrap(), BTreeMap::from([("10.0.0.1".to_owned(), "a".to_owned())]));
    let (node, _) = start_node(ok!(r#"[{"key": "UNREACHABLE", "value": ["b"]}, {"key": "v", "value": ["a"]}]"#)).await;
    assert!(schema_agrees(&node.schema_versions().await.unwrap()));
    let (node, _) =
        start_node(ok!(r#"[{"key": "t", "value": [{"ks": "k", "cf": "c", "total": 1, "live": 0}]}]"#)).await;
    let snapshot = TableSnapshot { keyspace: "k".to_owned(), table: "c".to_owned() };
    assert_eq!(node.snapshots().await.unwrap(), BTreeMap::from([("t".to_owned(), vec![snapshot])]));
}

#[tokio::test]
async fn calls_use_the_paths_of_the_rest_api() {
    let (node, mut requests) = start_node(ok!("")).await;
    let moment = Duration::from_secs(5);
    node.drain(moment).await.unwrap();
    node.cleanup("k s", moment).await.unwrap();
    node.stop_cleanup().await.unwrap();
    node.flush("ks", moment).await.unwrap();
    node.take_snapshot("t&1", "ks", moment).await.unwrap();
    node.remove_snapshot("t", "ks").await.unwrap();
    node.remove_node("id", moment).await.unwrap();
    assert_eq!(node.decommission(moment).await.unwrap(), Decommission::Done);
    // The empty response cannot be decoded, but the requests are recorded.
    let _ = node.tokens_of("fd00::1").await;
    let _ = node.datacenter(Some("10.0.0.1")).await;
    let _ = node.keyspaces(Keyspaces::NonLocal).await;
    let expected = [
        "POST /storage_service/drain",
        "POST /storage_service/keyspace_cleanup/k%20s",
        "POST /compaction_manager/stop_compaction?type=CLEANUP",
        "POST /storage_service/keyspace_flush/ks",
        "POST /storage_service/snapshots?tag=t%261&kn=ks",
        "DELETE /storage_service/snapshots?tag=t&kn=ks",
        "POST /storage_service/remove_node?host_id=id",
        "POST /storage_service/decommission",
        "GET /storage_service/tokens/fd00::1",
        "GET /snitch/datacenter?host=10.0.0.1",
        "GET /storage_service/keyspaces?type=non_local_strategy",
    ];
    for call in expected {
        assert_eq!(requests.recv().await.unwrap(), format!("{call} HTTP/1.1"));
    }
}

#[tokio::test]
async fn errors_name_the_call_and_the_cause() {
    let refusal =
        "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 33\r\n\r\n{\"message\": \"no ring\", \"code\": 1}";
    let (node, _) = start_node(Some(refusal)).await;
    let error = node.operation_mode().await.unwrap_err();
    let words = "GET /storage_service/operation_mode returned 500 Internal Server Error: no ring";
    assert_eq!(error.to_string(), words);

    let (node, _) =
        start_node(Some("HTTP/1.1 500 Oh\r\nContent-Length: 23\r\n\r\n\u{1b}[2Jno\rring\n\u{202e}of mine\u{7}")).await;
    let error = node.operation_mode().await.unwrap_err().to_string();
    assert!(error.ends_with(": no ring of mine"), "{error:?}");

    let (node, _) = start_node(ok!("[1")).await;
    assert!(matches!(node.host_id().await.unwrap_err(), Error::Unexpected { .. }));
    let (node, _) = start_node(Some("")).await;
    let error = node.host_id().await.unwrap_err();
    assert!(matches!(error, Error::Broken { .. }) && error.source().is_some(), "{error:?}");

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let closed_address = Node::at(listener.local_addr().unwrap());
    drop(listener);
    assert!(matches!(closed_address.ping().await.unwrap_err(), Error::Unreachable { .. }));
}

#[tokio::test]
async fn missing_response_fails_all_calls_except_decommission() {
    let (node, _questions) = start_node(None).await;
    let moment = Duration::from_millis(50);
    assert!(matches!(node.within(moment).ping().await.unwrap_err(), Error::TimedOut { .. }));
    assert!(matches!(node.drain(moment).await.unwrap_err(), Error::TimedOut { .. }));
    assert_eq!(node.decommission(moment).await.unwrap(), Decommission::Unanswered);
}

#[tokio::test]
async fn response_over_the_limit_is_not_read() {
    let long = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[{}]", "1,".repeat(5 << 20));
    let (node, _) = start_node(Some(long.leak())).await;
    let error = node.tokens().await.unwrap_err();
    assert!(matches!(error, Error::TooLong { .. }), "{error:?}");
}
