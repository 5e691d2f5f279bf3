//! What is written for one kind of object.

use std::{future::Future, sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    apply::{Applied, ComponentPlan},
    error::Error,
    status::Report,
    store::Kind,
};

/// That nothing is done for an object for now, because another program works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who works on it, how that shows, and how it ends.
    pub message: String,
    /// When the object is looked at again, should nothing change until then.
    pub requeue_after: Duration,
}

/// The steps for one kind of object.
pub trait Controller: Send + Sync + 'static {
    /// The kind.
    type Object: Kind;
    /// What is known when it is decided.
    type Observed: Send + Sync;
    /// What was decided.
    type Plan: Send + Sync;
    /// Name of the controller, in logs and metrics.
    const NAME: &'static str;
    /// What keeps an object from going before [`Controller::finalize`] is done.
    const FINALIZER: Option<&'static str> = None;
    /// Whether the status has conditions, which are made of what comes of the parts.
    const HAS_CONDITIONS: bool = true;
    /// The type and the reason of the condition of an object that [`Controller::held`] holds.
    const HELD: &'static str = "Held";

    /// Whether another program works on the object: then nothing is done for it but to say so.
    fn held(&self, _object: &Self::Object) -> Option<Hold> {
        None
    }
    /// What keeps the controller from all of its work, for those who ask whether the process is ready.
    fn waits_for(&self) -> Option<String> {
        None
    }
    /// Reads everything that the decision needs.
    fn observe(&self, object: &Arc<Self::Object>) -> impl Future<Output = Result<Self::Observed, Error>> + Send;
    /// Decides what there should be.
    fn plan(&self, observed: &Self::Observed) -> Self::Plan;
    /// Says what was decided as objects, in order.
    fn components(&self, observed: &Self::Observed, plan: &Self::Plan) -> Result<Vec<ComponentPlan>, Error>;
    /// Says how the object stands.
    fn report(&self, observed: &Self::Observed, plan: &Self::Plan, applied: &[Applied]) -> Report;
    /// Whether an object may adopt what a former one of its name left behind. It is deleted together with what it owns, so an
    /// invalid object adopts nothing.
    fn may_adopt(&self, _object: &Self::Object) -> Result<(), Error> {
        Ok(())
    }
    /// Does what was decided outside of Kubernetes, or begins to: first the word, then the deed. It is called when all
    /// that was decided is seen to be written, the status included.
    fn act(&self, _object: &Arc<Self::Object>, _observed: &Self::Observed, _plan: &Self::Plan) {}
    /// Does what has to be done before an object with our finalizer is removed, and reports on it.
    fn finalize(&self, _object: &Arc<Self::Object>) -> impl Future<Output = Result<Finalize, Error>> + Send {
        async { Ok(Finalize { status: None, step: FinalizeStep::RemoveFinalizer }) }
    }
}

/// The result of [`Controller::finalize`]: how far the finalization of an object is.
#[derive(Clone, Debug, PartialEq)]
pub struct Finalize {
    /// The status of the object, if there is something to write. The object is finalized again once the write is seen, and
    /// `step` is taken only when the status already is as given here.
    pub status: Option<Value>,
    /// What follows.
    pub step: FinalizeStep,
}

/// What follows a call of [`Controller::finalize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizeStep {
    /// The finalizer is removed: everything is done.
    RemoveFinalizer,
    /// The object is finalized again after this time.
    After(Duration),
}
