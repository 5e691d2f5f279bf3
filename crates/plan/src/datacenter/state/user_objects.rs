//! Objects of the user that racks name. Nodes without them would start with other settings than they are to have, so nothing is made
//! or changed while one is missing; nodes that run go on.

use std::collections::BTreeSet;

use crate::datacenter::model::{component::Component, observed::Observed, plan::Note};

/// What is missing, each object once.
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
            "{kind} {}/{name}, which the datacenter or a rack of it names, is not there: no rack is made or changed before it \
             is; create it, or take its name away",
            datacenter.namespace
        ),
    };
    let config_maps = config_maps.map(|name| note("ConfigMap", "WaitingForConfigMap", name));
    config_maps.chain(secrets.map(|name| note("Secret", "WaitingForSecret", name))).collect()
}
