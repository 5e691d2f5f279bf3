//! A node that is asked to leave the ring.

use messina_api::names::label::value::FALSE;

use super::Mode;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nobody asked for it, or it is done and said.
    Nothing,
    /// The node may begin to leave.
    Start,
    /// The node cannot begin yet, or has begun.
    Wait,
    /// The node has left; that is to be said.
    Confirm,
    /// The node cannot leave before its program is started anew.
    Restart,
}

/// What to do next for a node whose Service has the label [`DECOMMISSIONED`](messina_api::names::label::DECOMMISSIONED)
/// with the value `asked`.
pub fn step(asked: Option<&str>, mode: &Mode, has_native_transport: bool) -> Step {
    if asked != Some(FALSE) {
        return Step::Nothing;
    }
    match mode {
        Mode::Normal if has_native_transport => Step::Start,
        Mode::Decommissioned => Step::Confirm,
        Mode::Drained => Step::Restart,
        _ => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_leaves_step_by_step() {
        let cases = [
            (None, Mode::Normal, true, Step::Nothing, "nobody asked"),
            (Some("true"), Mode::Decommissioned, false, Step::Nothing, "it is said already"),
            (Some(""), Mode::Normal, true, Step::Nothing, "this is no request"),
            (Some("false"), Mode::Normal, true, Step::Start, "it serves"),
            (Some("false"), Mode::Normal, false, Step::Wait, "it does not serve clients yet"),
            (Some("false"), Mode::Joining, true, Step::Wait, "it is not in the ring yet"),
            (Some("false"), Mode::Leaving, true, Step::Wait, "it has begun"),
            (Some("false"), Mode::Draining, false, Step::Wait, "it will be drained"),
            (Some("false"), Mode::Drained, false, Step::Restart, "a drained node cannot leave"),
            (Some("false"), Mode::Decommissioned, false, Step::Confirm, "it has left"),
            (Some("false"), Mode::Other("NEW".to_owned()), true, Step::Wait, "what is not known is waited out"),
        ];
        for (asked, mode, transport, expected, why) in cases {
            assert_eq!(step(asked, &mode, transport), expected, "{why}");
        }
    }
}
