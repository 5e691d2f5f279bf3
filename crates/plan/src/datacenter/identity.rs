//! What nodes are known by. A datacenter of another name has other racks, and those that there are would count as removed:
//! a slip in one field would send all nodes away.

use messina_api::names::label;

use super::{Fault, Observed};

/// Fields of the specification that want the nodes that there are to be others. StatefulSets tell: nobody can change which
/// pods they select.
pub fn changes_of_identity(observed: &Observed) -> Option<Fault> {
    let wanted = &observed.datacenter.scylla_datacenter;
    let selected = observed.stateful_sets.values().filter_map(|one| {
        let selector = &one.spec.as_ref()?.selector;
        selector.match_labels.as_ref()?.get(label::DATACENTER)
    });
    let is = selected.into_iter().find(|is| *is != wanted)?;
    Some(Fault {
        field: "spec.datacenterName".into(),
        message: format!(
            "the datacenter would be {wanted:?} now, and its nodes are in {is:?}, which cannot change as long as they live: \
             set it to {is:?} again. Nothing is changed meanwhile"
        ),
    })
}
