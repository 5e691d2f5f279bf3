//! Rules for fields that nodes are known by, which cannot change as long as there are nodes. They are of the whole object: the
//! status says whether there are any, and a rule of a field does not hear of its removal.
//!
//! There is none for the name of a datacenter: with definitions of others it may have been changed before, and then a rule would
//! refuse the way back. The operator sees to it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;

/// A ScyllaDBDatacenter's.
pub(crate) fn of_datacenters() -> Vec<ValidationRule> {
    let of_options = |field: &str, means: Means| rule(&format!(".spec.exposeOptions.{field}"), means);
    vec![
        rule(".spec.clusterName", Means::Text("")),
        rule(".spec.ipFamilies", Means::FirstOf("IPv4")),
        of_options("nodeService.type", Means::Text("ClusterIP")),
        of_options("broadcastOptions.nodes.type", Means::Broadcast),
        of_options("broadcastOptions.clients.type", Means::Broadcast),
    ]
}

/// What a field means where it is not set.
#[derive(Clone, Copy)]
enum Means {
    /// This text.
    Text(&'static str),
    /// It is a list of which the first entry counts, and that is this one.
    FirstOf(&'static str),
    /// One thing where its neighbours are set, and another one where they are not either.
    Broadcast,
}

fn rule(path: &str, means: Means) -> ValidationRule {
    let without = match means {
        Means::Text("") => String::new(),
        Means::Text(text) | Means::FirstOf(text) => format!(" (without it, {text})"),
        Means::Broadcast => " (without it, PodIP, and ServiceClusterIP without broadcastOptions)".into(),
    };
    let message = format!("nodes are known by it, so it cannot change{without}: set it back, or create another object");
    let has_none = format!("!({} && oldSelf.status.nodes > 0)", is_set("oldSelf", ".status.nodes"));
    ValidationRule {
        rule: format!("{has_none} || ({}) == ({})", value("self", path, means), value("oldSelf", path, means)),
        message: Some(message),
        field_path: Some(path.into()),
        ..ValidationRule::default()
    }
}

/// The value of a field, in CEL.
fn value(object: &str, path: &str, means: Means) -> String {
    let field = format!("{object}{path}");
    let is_set = is_set(object, path);
    match means {
        Means::Text(text) => format!("{is_set} ? {field} : '{text}'"),
        Means::FirstOf(text) => format!("{is_set} && {field}.size() > 0 ? {field}[0] : '{text}'"),
        Means::Broadcast => {
            // They stand two fields above.
            let neighbours = path.rsplitn(3, '.').last().unwrap_or(path);
            let has_neighbours = self::is_set(object, neighbours);
            format!("{is_set} ? {field} : {has_neighbours} ? 'PodIP' : 'ServiceClusterIP'")
        }
    }
}

/// That a field and all that it is in are there.
fn is_set(object: &str, path: &str) -> String {
    let ends = path.match_indices('.').map(|(position, _)| position).skip(1).chain([path.len()]);
    ends.map(|end| format!("has({object}{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}
