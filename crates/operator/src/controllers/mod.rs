//! One folder for each controller: what it watches, and its steps. Decisions are in the crate `plan`.

pub mod datacenter;
pub mod etcd_task;

use messina_runtime::{apply::without_records_of_others, store::Kind};

/// In whose name objects are written.
pub const FIELD_MANAGER: &str = "messina";

/// Takes away what no controller reads.
fn trim<K: Kind>(object: &mut K) {
    without_records_of_others(object.meta_mut(), FIELD_MANAGER);
}
