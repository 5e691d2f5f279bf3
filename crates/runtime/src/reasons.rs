//! The reasons of conditions and events that the runtime writes for every kind.

messina_text::reasons! {
    /// The object adopted objects that a former object of its name left.
    ADOPTED = "Adopted";
    /// There is nothing to report.
    AS_EXPECTED = "AsExpected";
    /// An object has changed since the operator read it. The operator reconciles again at once.
    CONFLICT = "Conflict";
    /// The operator may not write an object. The message names the missing permission.
    FORBIDDEN = "Forbidden";
    /// The operator does not reconcile the object, because another program manages it.
    HELD = "Held";
    /// The operator failed with a panic. It retries.
    INTERNAL_ERROR = "InternalError";
    /// An object of that name exists and belongs to another owner.
    NAME_TAKEN = "NameTaken";
    /// The API server did not answer. The operator retries.
    NO_ANSWER = "NoAnswer";
    /// An object of the operator lacks the labels by which the operator finds it.
    NOT_FOUND_BY_LABELS = "NotFoundByLabels";
    /// An object cannot be encoded as JSON.
    NOT_JSON = "NotJson";
    /// This replica of the operator is not the leader.
    NOT_LEADING = "NotLeading";
    /// The operator does not watch a kind that it should write.
    NOT_WATCHED = "NotWatched";
    /// The user paused the object by annotation. The operator does not reconcile it.
    PAUSED = "Paused";
    /// The API server refused a request for another cause than permissions or validation.
    REFUSED = "Refused";
    /// The API server or an admission webhook rejected an object as invalid.
    REJECTED = "Rejected";
    /// Nothing suspends the object any more. The operator reconciles it again.
    RESUMED = "Resumed";
    /// An object cannot be decoded. The operator leaves it as it is until it is corrected.
    UNREADABLE = "Unreadable";
    /// A component waits for another one that could not be applied.
    WAITING = "Waiting";
    /// The operator has just written objects of a component.
    WRITTEN = "Written";
}
