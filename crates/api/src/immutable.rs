//! CEL rules for fields that identify nodes, which cannot change while there are nodes. They are rules of the whole
//! object, because the status has the number of nodes, and because a rule of a field does not run when the field is
//! removed.
//!
//! There is no rule for `datacenterName`: it may have been changed under a definition of scylla-operator, and a rule
//! would reject the correction. The operator validates it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;

/// Returns the rules of a ScyllaDBDatacenter.
pub(crate) fn datacenter_rules() -> Vec<ValidationRule> {
    let of_options = |field: &str, unset: Unset| rule(&format!(".spec.exposeOptions.{field}"), unset);
    vec![
        rule(".spec.clusterName", Unset::Text("")),
        rule(".spec.ipFamilies", Unset::FirstOf("IPv4")),
        of_options("nodeService.type", Unset::Text("ClusterIP")),
        of_options("broadcastOptions.nodes.type", Unset::Broadcast),
        of_options("broadcastOptions.clients.type", Unset::Broadcast),
    ]
}

/// The default of a field.
#[derive(Clone, Copy)]
enum Unset {
    /// This string.
    Text(&'static str),
    /// The first entry of the list, which is this string by default.
    FirstOf(&'static str),
    /// PodIP if `broadcastOptions` is set, ServiceClusterIP otherwise.
    Broadcast,
}

fn rule(path: &str, unset: Unset) -> ValidationRule {
    let default = match unset {
        Unset::Text("") => String::new(),
        Unset::Text(text) | Unset::FirstOf(text) => format!(" (default: {text})"),
        Unset::Broadcast => " (default: PodIP, or ServiceClusterIP without broadcastOptions)".into(),
    };
    let field = path.trim_start_matches('.');
    let message = format!(
        "{field}{default} identifies nodes and cannot change while there are nodes: restore its value, or create \
         another ScyllaDBDatacenter"
    );
    let has_none = format!("!({} && oldSelf.status.nodes > 0)", is_set("oldSelf", ".status.nodes"));
    ValidationRule {
        rule: format!("{has_none} || ({}) == ({})", value("self", path, unset), value("oldSelf", path, unset)),
        message: Some(message),
        field_path: Some(path.into()),
        ..ValidationRule::default()
    }
}

/// Returns the CEL expression of a field's value.
fn value(object: &str, path: &str, unset: Unset) -> String {
    let field = format!("{object}{path}");
    let is_set = is_set(object, path);
    match unset {
        Unset::Text(text) => format!("{is_set} ? {field} : '{text}'"),
        Unset::FirstOf(text) => format!("{is_set} && {field}.size() > 0 ? {field}[0] : '{text}'"),
        Unset::Broadcast => {
            // `broadcastOptions` is two fields above.
            let neighbours = path.rsplitn(3, '.').last().unwrap_or(path);
            let has_neighbours = self::is_set(object, neighbours);
            format!("{is_set} ? {field} : {has_neighbours} ? 'PodIP' : 'ServiceClusterIP'")
        }
    }
}

/// Returns the CEL expression of whether a field and its parents are set.
fn is_set(object: &str, path: &str) -> String {
    let ends = path.match_indices('.').map(|(position, _)| position).skip(1).chain([path.len()]);
    ends.map(|end| format!("has({object}{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}
