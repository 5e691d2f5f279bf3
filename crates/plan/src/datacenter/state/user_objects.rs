//! ConfigMaps and Secrets of the user that the specification references. Nodes without them would start with other
//! settings than the user wants, so no StatefulSet is created or changed while one is missing; running nodes keep
//! running.

use std::collections::BTreeSet;

use crate::datacenter::{
    model::{component::Component, observed::Observed, plan::Note},
    reasons,
};

/// Returns the missing objects, each once.
pub(crate) fn missing(observed: &Observed) -> Vec<Note> {
    let datacenter = &observed.datacenter;
    let racks = &datacenter.racks;
    let config_maps: BTreeSet<&String> = racks.iter().filter_map(|rack| rack.custom_config_map.as_ref()).collect();
    let secrets = racks.iter().filter_map(|rack| rack.agent_custom_config_secret.as_ref());
    let secrets: BTreeSet<&String> = secrets.chain(&datacenter.token_override).collect();
    let config_maps = config_maps.into_iter().filter(|name| !observed.user_objects.config_maps.contains_key(*name));
    let secrets = secrets.into_iter().filter(|name| !observed.user_objects.secrets.contains_key(*name));
    let note = |kind: &str, reason, name: &String| Note {
        component: Component::StatefulSet,
        reason,
        message: format!(
            "{kind} {}/{name}, which the specification references, does not exist. The operator creates and changes \
             no StatefulSet until it does. Create it, or remove the reference to it.",
            datacenter.namespace
        ),
    };
    let config_maps = config_maps.map(|name| note("ConfigMap", reasons::WAITING_FOR_CONFIG_MAP, name));
    config_maps.chain(secrets.map(|name| note("Secret", reasons::WAITING_FOR_SECRET, name))).collect()
}
