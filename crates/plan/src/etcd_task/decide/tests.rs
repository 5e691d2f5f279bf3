#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;

use super::*;
use crate::etcd_task::Findings;
use messina_api::druid::v1alpha1::TakenSnapshot;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

const DEADLINE: Duration = Duration::from_secs(60);

fn observed() -> Observed {
    Observed {
        status: EtcdOperatorTaskStatus::default(),
        generation: Some(1),
        created_at: at(0),
        is_being_deleted: false,
        time_to_live: Some(Duration::from_secs(600)),
        options: Ok(Options { deadline: DEADLINE }),
        needs_cleanup: false,
        etcd: EtcdAvailability::Found,
        ahead: Vec::new(),
        may_refresh: true,
        stage_state: StageState::None,
        failures: 0,
        now: at(5),
    }
}

fn in_state(state: TaskState) -> Observed {
    let mut observed = observed();
    observed.status.state = Some(state);
    observed.status.observed_generation = Some(1);
    observed.status.initiated_at = Some(Time(at(2)));
    observed
}

fn state(plan: &Plan) -> TaskState {
    plan.status.state.clone().unwrap()
}

fn description(plan: &Plan) -> String {
    plan.status.last_operation.clone().unwrap().description.unwrap()
}

fn codes(plan: &Plan) -> Vec<String> {
    plan.status.last_errors.iter().flatten().map(|error| error.code.clone().unwrap()).collect()
}

#[test]
fn task_passes_through_all_states_and_is_deleted() {
    let mut observed = observed();
    let plan = decide(&observed);
    assert_eq!((state(&plan), plan.status.observed_generation), (TaskState::Pending, Some(1)));
    observed.status = plan.status;
    let plan = decide(&observed);
    assert_eq!(
        (plan.next, &plan.status),
        (NextStep::CallHandler(Stage::Admit), &observed.status),
        "the status is already written"
    );
    observed.stage_state = StageState::Done(Stage::Admit, TaskResult::done("go"));
    let plan = decide(&observed);
    assert_eq!((state(&plan), plan.status.initiated_at.clone()), (TaskState::InProgress, Some(Time(at(5)))));
    observed.status = plan.status;
    let plan = decide(&observed);
    assert_eq!((plan.next, &plan.status), (NextStep::CallHandler(Stage::Run), &observed.status));
    let snapshot = TakenSnapshot { name: Some("full-1".into()), ..TakenSnapshot::default() };
    let result = TaskResult::done("taken").with(Findings { snapshot: Some(snapshot), ..Findings::default() });
    observed.stage_state = StageState::Done(Stage::Run, result);
    let plan = decide(&observed);
    assert_eq!(
        (state(&plan), plan.status.snapshot.clone().unwrap().name.unwrap()),
        (TaskState::Succeeded, "full-1".into())
    );
    observed.status = plan.status;
    observed.now = at(604);
    assert_eq!(decide(&observed).next, NextStep::Wait(Some(Duration::from_secs(1))));
    observed.now = at(605);
    assert_eq!(decide(&observed).next, NextStep::Delete);
    observed.time_to_live = None;
    assert_eq!(decide(&observed).next, NextStep::Wait(None), "the task is kept");
}

#[test]
fn pending_task_reports_what_it_waits_for() {
    for (etcd, ahead, named) in [
        (EtcdAvailability::NotServed, vec![], "is not installed"),
        (EtcdAvailability::NotFound("default/main".into()), vec![], "Etcd default/main"),
        (EtcdAvailability::NotWatched("other/main".into(), "default".into()), vec![], "watches only namespace default"),
        (
            EtcdAvailability::Unreadable("Etcd default/main cannot be read: spec.etcd".into()),
            vec![],
            "Correct the Etcd",
        ),
        (EtcdAvailability::Found, vec!["default/a".to_owned()], "task default/a"),
        (
            EtcdAvailability::Found,
            vec!["default/a".to_owned(), "default/b".to_owned()],
            "2 tasks on the same etcd cluster",
        ),
    ] {
        let position = i32::try_from(ahead.len()).ok().filter(|position| *position > 0);
        let plan = decide(&Observed { etcd, ahead, ..observed() });
        assert_eq!((state(&plan), plan.status.place), (TaskState::Pending, position));
        assert!(description(&plan).contains(named), "{}", description(&plan));
        assert!(matches!(plan.next, NextStep::Wait(_)));
    }
}

#[test]
fn queue_position_is_not_written_before_it_may_be_refreshed() {
    let first = decide(&Observed { ahead: vec!["a".into(), "b".into()], ..observed() }).status;
    let moved = Observed { status: first.clone(), ahead: vec!["b".into()], may_refresh: false, ..observed() };
    let plan = decide(&moved);
    assert_eq!((plan.status, plan.next), (first, NextStep::Wait(Some(RETRIES.longest))));
    assert_eq!(decide(&Observed { may_refresh: true, ..moved }).status.place, Some(1));
}

#[test]
fn task_that_can_never_run_is_rejected() {
    let error = TaskError::new(code::INVALID_CONFIG, "config.x");
    for state_before in [None, Some(TaskState::Pending)] {
        let mut observed = Observed { options: Err(error.clone()), ..observed() };
        observed.status.state = state_before;
        let plan = decide(&observed);
        assert_eq!((state(&plan), codes(&plan)), (TaskState::Rejected, vec![code::INVALID_CONFIG.to_owned()]));
    }
    let mut refused = in_state(TaskState::Pending);
    refused.stage_state =
        StageState::Done(Stage::Admit, TaskResult::failed(TaskError::new(code::PRECONDITION, "no store")));
    assert_eq!(state(&decide(&refused)), TaskState::Rejected);
    // A task that had started fails instead.
    let started = Observed { options: Err(error), ..in_state(TaskState::InProgress) };
    assert_eq!(state(&decide(&started)), TaskState::Failed);
}

#[test]
fn run_is_retried_until_the_deadline() {
    let retry = TaskResult::retry(TaskError::new("ERR_X", "busy"));
    let mut observed = in_state(TaskState::InProgress);
    observed.stage_state = StageState::Done(Stage::Run, retry.clone());
    let plan = decide(&observed);
    assert_eq!((state(&plan), codes(&plan)), (TaskState::InProgress, vec!["ERR_X".to_owned()]));
    observed.status = plan.status;
    let again = decide(&observed);
    assert_eq!(
        (&again.status, again.next),
        (&observed.status, NextStep::CallAgainAfter(RETRIES.first)),
        "the same error is not added twice"
    );
    observed.now = at(2 + 60);
    let late = decide(&observed);
    assert_eq!((state(&late), codes(&late)), (TaskState::Failed, vec!["ERR_X".to_owned(), code::DEADLINE.to_owned()]));
    assert!(description(&late).contains("busy") && description(&late).contains("60 s"), "{}", description(&late));
    // A run that ended in time counts, even if the operator processes its result after the deadline.
    observed.stage_state = StageState::Done(Stage::Run, TaskResult::done("taken"));
    assert_eq!(state(&decide(&observed)), TaskState::Succeeded);
}

#[test]
fn status_keeps_the_last_ten_errors() {
    let mut observed = in_state(TaskState::InProgress);
    for number in 0..25 {
        observed.stage_state =
            StageState::Done(Stage::Run, TaskResult::retry(TaskError::new("ERR_X", format!("{number}"))));
        observed.status = decide(&observed).status;
    }
    let kept: Vec<String> =
        observed.status.last_errors.unwrap().into_iter().map(|error| error.description.unwrap()).collect();
    assert_eq!(kept, (15..25).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn task_waits_until_the_second_of_its_creation_is_over() {
    let mut observed = in_state(TaskState::Pending);
    observed.created_at = at(5);
    assert_eq!(decide(&observed).next, NextStep::Wait(Some(Duration::from_secs(1))));
    let new = Observed { status: EtcdOperatorTaskStatus::default(), ..observed.clone() };
    assert_eq!(decide(&new).status, new.status, "another task of that second may come first");
    observed.now = at(6);
    assert_eq!(decide(&observed).next, NextStep::CallHandler(Stage::Admit));
}

#[test]
fn finished_task_is_cleaned_up_once() {
    for state in [TaskState::Succeeded, TaskState::Failed] {
        let mut observed = Observed { needs_cleanup: true, ..in_state(state.clone()) };
        // A run that exceeded the deadline may still be running.
        for stage_state in [
            StageState::None,
            StageState::Running(Stage::Run),
            StageState::Done(Stage::Run, TaskResult::done("done")),
            StageState::Waiting(Duration::ZERO),
        ] {
            observed.stage_state = stage_state;
            assert_eq!(decide(&observed).next, NextStep::CallHandler(Stage::CleanUp), "{observed:?}");
        }
        observed.stage_state = StageState::Running(Stage::CleanUp);
        assert!(matches!(decide(&observed).next, NextStep::Wait(Some(_))));
        let retry = TaskResult::retry(TaskError::new("ERR_X", "the Job could not be deleted"));
        observed.stage_state = StageState::Done(Stage::CleanUp, retry);
        let plan = decide(&observed);
        assert_eq!(
            (plan.next.clone(), codes(&plan)),
            (NextStep::CallAgainAfter(RETRIES.first), vec!["ERR_X".to_owned()])
        );
        assert_eq!((plan.status.state.as_ref(), plan.status.cleaned_up_at), (Some(&state), None));
        observed.stage_state = StageState::Done(Stage::CleanUp, TaskResult::done("removed"));
        let plan = decide(&observed);
        assert_eq!((plan.status.cleaned_up_at.clone(), &plan.status.last_operation), (Some(Time(at(5))), &None));
        observed.status = plan.status;
        observed.stage_state = StageState::None;
        assert!(
            matches!(decide(&observed).next, NextStep::Wait(Some(_))),
            "the cleanup runs once, even after a restart of the operator"
        );
    }
    let rejected = Observed { needs_cleanup: true, ..in_state(TaskState::Rejected) };
    assert!(matches!(decide(&rejected).next, NextStep::Wait(_)), "a rejected task has never run");
    let unneeded = in_state(TaskState::Succeeded);
    assert!(matches!(decide(&unneeded).next, NextStep::Wait(_)));
}

#[test]
fn running_task_with_unreadable_etcd_fails_at_its_deadline() {
    let etcd = EtcdAvailability::Unreadable("Etcd default/main cannot be read: spec.backup".into());
    let mut observed =
        Observed { etcd, stage_state: StageState::Waiting(Duration::ZERO), ..in_state(TaskState::InProgress) };
    let plan = decide(&observed);
    assert_eq!((state(&plan), codes(&plan)), (TaskState::InProgress, vec![code::ETCD_UNREADABLE.to_owned()]));
    assert!(description(&plan).contains("spec.backup"), "{}", description(&plan));
    assert_eq!(plan.next, NextStep::Wait(Some(Duration::from_secs(57))), "until its deadline");
    (observed.status, observed.now) = (plan.status, at(62));
    let plan = decide(&observed);
    assert_eq!(state(&plan), TaskState::Failed);
    assert!(codes(&plan).contains(&code::DEADLINE.to_owned()));
}

/// What may happen between two reconciles.
#[derive(Clone, Debug)]
enum Event {
    /// The operator observes the status that it wrote.
    Written,
    /// The handler returns a result.
    HandlerResult(TaskResult),
    /// The operator is restarted.
    Restart,
    /// These seconds pass.
    TimePasses(i64),
    /// The Etcd appears or disappears.
    Etcd(EtcdAvailability),
    /// The number of tasks ahead changes.
    TasksAhead(usize),
    /// The operator is replaced by a version that knows the type, or does not.
    Options(bool),
}

fn results() -> impl Strategy<Value = TaskResult> {
    let error = || TaskError::new("ERR_X", "x");
    prop_oneof![
        Just(TaskResult::done("done")),
        Just(TaskResult::failed(error())),
        Just(TaskResult::retry(error())),
        Just(TaskResult::in_progress("on", Duration::ZERO)),
        Just(TaskResult::in_progress("on", Duration::from_secs(3))),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Written),
        6 => results().prop_map(Event::HandlerResult),
        1 => Just(Event::Restart),
        3 => (0_i64..40).prop_map(Event::TimePasses),
        1 => prop_oneof![
            Just(EtcdAvailability::Found),
            Just(EtcdAvailability::NotFound("x".into())),
            Just(EtcdAvailability::NotServed),
            Just(EtcdAvailability::Unreadable("x".into())),
        ]
        .prop_map(Event::Etcd),
        2 => (0_usize..3).prop_map(Event::TasksAhead),
        1 => any::<bool>().prop_map(Event::Options),
    ]
}

/// Whether the state machine has this transition.
fn is_allowed(before: Option<&TaskState>, after: Option<&TaskState>) -> bool {
    use TaskState::{Failed, InProgress, Pending, Rejected, Succeeded};
    before == after
        || matches!(
            (before, after),
            (None, Some(Pending | Rejected))
                | (Some(Pending), Some(InProgress | Rejected))
                | (Some(InProgress), Some(Succeeded | Failed))
        )
}

/// A simulation of a task, its handler and its controller.
struct Simulation {
    observed: Observed,
    now: i64,
}

impl Simulation {
    fn reconcile(&mut self) -> Plan {
        self.observed.now = at(self.now);
        let plan = decide(&self.observed);
        let is_written = plan.status == self.observed.status;
        assert!(is_allowed(self.observed.status.state.as_ref(), plan.status.state.as_ref()), "{plan:?}");
        assert!(plan.status.last_errors.iter().flatten().count() <= MAX_ERRORS);
        // The operator acts only on a status that it observes.
        if is_written {
            match plan.next {
                NextStep::CallHandler(stage) => {
                    let is_free = match self.observed.stage_state {
                        StageState::Running(Stage::CleanUp) => false,
                        StageState::Running(_) => stage == Stage::CleanUp,
                        _ => true,
                    };
                    assert!(is_free, "one call at a time");
                    let state = self.observed.status.state.as_ref();
                    let is_expected = match stage {
                        Stage::Admit => state == Some(&TaskState::Pending),
                        Stage::Run => state == Some(&TaskState::InProgress),
                        Stage::CleanUp => is_finished(state) && self.observed.status.cleaned_up_at.is_none(),
                    };
                    assert!(is_expected, "{stage:?} in {state:?}");
                    assert!(stage != Stage::Admit || self.observed.ahead.is_empty(), "other tasks are ahead");
                    self.observed.stage_state = StageState::Running(stage);
                }
                NextStep::CallAgainAfter(time) => self.observed.stage_state = StageState::Waiting(time),
                NextStep::Wait(_) | NextStep::Delete => {}
                NextStep::RemoveFinalizer => unreachable!("the task is not being deleted"),
            }
        }
        plan
    }

    fn apply(&mut self, event: &Event, plan: &Plan) {
        match event {
            Event::Written => self.observed.status = plan.status.clone(),
            Event::HandlerResult(result) => {
                if let StageState::Running(stage) = self.observed.stage_state {
                    self.observed.stage_state = StageState::Done(stage, result.clone());
                }
            }
            Event::Restart => self.observed.stage_state = StageState::None,
            Event::TimePasses(seconds) => {
                self.now += seconds;
                if let StageState::Waiting(remaining) = self.observed.stage_state {
                    let gone = Duration::from_secs(seconds.unsigned_abs());
                    self.observed.stage_state = StageState::Waiting(remaining.saturating_sub(gone));
                }
            }
            Event::Etcd(availability) => self.observed.etcd = availability.clone(),
            Event::TasksAhead(count) => self.observed.ahead = (0..*count).map(|number| number.to_string()).collect(),
            Event::Options(is_known) => {
                self.observed.options = if *is_known {
                    Ok(Options { deadline: DEADLINE })
                } else {
                    Err(TaskError::new(code::UNKNOWN_TYPE, "x"))
                };
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 8, ..ProptestConfig::default() })]

    /// From every state and under every order of events, a task makes only the transitions of the state machine; and
    /// once the events cease, it finishes and is deleted.
    #[test]
    fn every_task_ends(
        initial_state in prop_oneof![
            Just(None), Just(Some(TaskState::Pending)), Just(Some(TaskState::InProgress)),
            Just(Some(TaskState::Succeeded)), Just(Some(TaskState::Failed)), Just(Some(TaskState::Rejected)),
        ],
        events in proptest::collection::vec(events(), 0..60),
        last_result in results(),
        needs_cleanup in any::<bool>(),
    ) {
        let mut simulation = Simulation { observed: Observed { needs_cleanup, ..observed() }, now: 5 };
        simulation.observed.status.state = initial_state.clone();
        if initial_state.is_some() {
            simulation.observed.status.observed_generation = Some(1);
        }
        if matches!(initial_state, Some(TaskState::InProgress)) {
            simulation.observed.status.initiated_at = Some(Time(at(1)));
        }
        for event in &events {
            let plan = simulation.reconcile();
            simulation.apply(event, &plan);
        }
        simulation.apply(&Event::Etcd(EtcdAvailability::Found), &decide(&simulation.observed));
        simulation.apply(&Event::TasksAhead(0), &decide(&simulation.observed));
        let mut is_deleted = false;
        for _ in 0..400 {
            let plan = simulation.reconcile();
            if plan.next == NextStep::Delete && plan.status == simulation.observed.status {
                is_deleted = true;
                break;
            }
            simulation.apply(&Event::Written, &plan);
            simulation.apply(&Event::HandlerResult(last_result.clone()), &plan);
            simulation.apply(&Event::TimePasses(5), &plan);
        }
        prop_assert!(is_deleted, "{:?}", simulation.observed);
        prop_assert!(is_finished(simulation.observed.status.state.as_ref()));
    }
}
