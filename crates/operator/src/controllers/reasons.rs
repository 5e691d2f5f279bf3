//! The reasons of conditions and events that controllers of this crate report beside those of `plan` and of the runtime.

messina_text::reasons! {
    /// The operating system provides no random bytes, so the operator cannot generate a token.
    NO_RANDOMNESS = "NoRandomness";
    /// This version of the operator has no controller for the kind of the object.
    NOT_SERVED = "NotServed";
    /// scylla-operator manages the object, so this operator does not change it.
    SCYLLA_OPERATOR_ACTIVE = "ScyllaOperatorActive";
    /// The cleanup of an etcd task failed. The operator retries it.
    TASK_CLEANUP_FAILED = "TaskCleanupFailed";
    /// An etcd task failed. The message is the description of its last operation.
    TASK_FAILED = "TaskFailed";
    /// An etcd task was rejected. The message is the description of its last operation.
    TASK_REJECTED = "TaskRejected";
}
