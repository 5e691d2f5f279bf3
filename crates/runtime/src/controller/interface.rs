//! The interface that a controller of one kind implements.

use std::{future::Future, sync::Arc, time::Duration};

use kube::api::ObjectMeta;
use messina_text::Reason;

use crate::{
    apply::{Applied, ComponentPlan},
    error::Error,
    queue::{Backoff, ObjectKey},
    reasons,
    status::{ForeignStatus, Report},
    store::Kind,
};

/// The suspension of an object's reconciliation, because another operator manages the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Which operator manages the object, the evidence for that, and how the suspension ends.
    pub message: String,
    /// When the object is reconciled again, if nothing changes before.
    pub requeue_after: Duration,
}

/// The steps of a reconcile for one kind of object.
pub trait Controller: Send + Sync + 'static {
    /// The kind.
    type Object: Kind;
    /// The observed state.
    type Observed: Send + Sync;
    /// The desired state, and the status.
    type Plan: Send + Sync;
    /// Name of the controller, in logs and metrics.
    const NAME: &'static str;
    /// The field manager of the controller's writes. Each controller has its own, so that it neither changes nor
    /// removes fields that another one has applied.
    const FIELD_MANAGER: &'static str;
    /// The backoff of an object whose reconcile failed.
    const BACKOFF: Backoff = Backoff::DEFAULT;
    /// Returns the object that the labels of an orphan name as its owner; none for a controller that adopts nothing.
    const ORPHAN_OWNER: Option<fn(&ObjectMeta) -> Option<ObjectKey>> = None;
    /// The finalizer that keeps a deleted object until [`Controller::is_finalized`].
    const FINALIZER: Option<&'static str> = None;
    /// Whether the status has conditions, which the runtime derives from the results of the components.
    const HAS_CONDITIONS: bool = true;
    /// The parts of the status that another controller writes. They are never changed.
    const FOREIGN_STATUS: ForeignStatus = ForeignStatus::NONE;
    /// Type and reason of the condition of an object for which [`Controller::suspended`] returns a suspension.
    const SUSPENDED: Reason = reasons::HELD;

    /// Returns a suspension if another operator manages the object: the operator then only reports that.
    fn suspended(&self, _object: &Self::Object) -> Option<Suspension> {
        None
    }
    /// Returns what blocks the whole controller, for `/readyz`.
    fn blocked_on(&self) -> Option<String> {
        None
    }
    /// Reads everything that the plan depends on.
    fn observe(&self, object: &Arc<Self::Object>) -> impl Future<Output = Result<Self::Observed, Error>> + Send;
    /// Decides the desired state.
    fn plan(&self, observed: &Self::Observed) -> Self::Plan;
    /// Returns the plan as components with objects, in the order in which they are applied.
    fn components(&self, observed: &Self::Observed, plan: &Self::Plan) -> Result<Vec<ComponentPlan>, Error>;
    /// Returns the status.
    fn report(&self, observed: &Self::Observed, plan: &Self::Plan, applied: &[Applied]) -> Report;
    /// Whether an object may adopt orphans of a former object of its name. When it is deleted, they are deleted with
    /// it, so an invalid object adopts nothing.
    fn may_adopt(&self, _object: &Self::Object) -> Result<(), Error> {
        Ok(())
    }
    /// Does what was planned outside of Kubernetes, or starts it. It is called when the caches show that all planned
    /// objects and the status are written, so that a decision is recorded before it is carried out.
    fn act(&self, _object: &Arc<Self::Object>, _observed: &Self::Observed, _plan: &Self::Plan) {}
    /// Whether the finalizer of an object that is being deleted is removed, once the status is written. Until then the
    /// object is observed and planned like any other: the plan must not create dependents, which nothing would delete.
    fn is_finalized(&self, _plan: &Self::Plan) -> bool {
        true
    }
}
