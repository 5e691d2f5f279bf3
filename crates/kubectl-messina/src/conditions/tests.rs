use super::*;

fn condition(name: &str, reason: &str, message: &str) -> Condition {
    Condition {
        condition_type: name.into(),
        status: !name.ends_with(AVAILABLE),
        reason: reason.into(),
        message: message.into(),
    }
}

fn degraded(component: Component, message: &str) -> Condition {
    condition(&format!("{}Degraded", component.name()), "Forbidden", message)
}

fn progressing(component: Component, message: &str) -> Condition {
    condition(&format!("{}Progressing", component.name()), "Waiting", message)
}

fn not_available() -> Condition {
    condition("StatefulSetControllerAvailable", "MembersNotReady", "0 of 3 node(s) are ready")
}

fn not_created() -> Condition {
    condition("StatefulSetControllerAvailable", "RacksNotAtDesiredVersion", "Rack(s) a do not run version 1 yet.")
}

/// The types and the messages of conditions.
fn lines<'a>(all: &[Shown<'a>]) -> Vec<(&'a str, &'a str)> {
    let of_condition = |shown: &Shown<'a>| {
        let name = shown.condition.condition_type.as_str();
        shown.messages.iter().map(|message| (name, *message)).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_condition).collect()
}

#[test]
fn components_wait_only_for_components_that_are_applied_before() {
    for component in Component::ALL {
        let later = Component::ALL.into_iter().filter(|other| *other >= component);
        let waits: Vec<Component> = later.filter(|other| waits_for(component, *other)).collect();
        assert_eq!(waits, [], "{component:?} waits for what comes later");
    }
}

#[test]
fn degraded_component_is_the_cause_of_those_that_wait_for_it() {
    let conditions = [
        degraded(Component::AgentToken, "auth-token.yaml in Secret scylla/agent is not YAML"),
        not_created(),
        progressing(Component::StatefulSet, "Waiting for component AgentTokenController, which could not be applied."),
        progressing(Component::Job, "Service scylla/a-0 has no ring hash\nService scylla/b-0 has no ring hash"),
        progressing(Component::Ingress, "Service scylla/a-0 has no host ID"),
    ];
    let folded = fold(&conditions, false);
    assert_eq!(
        lines(&folded.causes),
        [("AgentTokenControllerDegraded", "auth-token.yaml in Secret scylla/agent is not YAML")]
    );
    assert_eq!((folded.others.as_slice(), folded.consequences, folded.omitted), ([].as_slice(), 5, 0));
    assert_eq!(folded.left_out(), Some(("5 more messages follow from this".into(), "them")));
}

#[test]
fn earliest_component_comes_first_among_degraded_ones() {
    let conditions = [
        degraded(Component::Job, "a Job has failed"),
        degraded(Component::StatefulSet, "a StatefulSet is rejected"),
        degraded(Component::Service, "a Service is rejected"),
        condition(OBSERVATION, "NoAnswer", "no answer from the API server"),
        degraded(Component::RoleBinding, "a RoleBinding is rejected"),
    ];
    let folded = fold(&conditions, false);
    let order: Vec<&str> = lines(&folded.causes).into_iter().map(|(name, _)| name).collect();
    let expected = [
        OBSERVATION,
        "RoleBindingControllerDegraded",
        "ServiceControllerDegraded",
        "StatefulSetControllerDegraded",
        "JobControllerDegraded",
    ];
    assert_eq!(order, expected, "a degraded condition is never folded away");
    assert_eq!((folded.consequences, folded.left_out()), (0, None));
}

#[test]
fn components_that_do_not_wait_for_the_cause_are_shown() {
    let conditions = [
        degraded(Component::Job, "a Job has failed"),
        not_available(),
        progressing(Component::StatefulSet, "StatefulSet scylla/a is rolling out"),
        progressing(Component::Storage, "PersistentVolumeClaim scylla/data-a-0 is being resized"),
    ];
    let folded = fold(&conditions, false);
    assert_eq!(lines(&folded.causes), [("JobControllerDegraded", "a Job has failed")]);
    assert_eq!(
        lines(&folded.others),
        [
            ("StatefulSetControllerAvailable", "0 of 3 node(s) are ready"),
            ("StatefulSetControllerProgressing", "StatefulSet scylla/a is rolling out"),
            ("StorageControllerProgressing", "PersistentVolumeClaim scylla/data-a-0 is being resized"),
        ]
    );
    assert_eq!(folded.left_out(), None);
    // The storage of nodes does not wait for any other component.
    let folded_storage = [degraded(Component::Service, "x"), conditions[3].clone()];
    assert_eq!(fold(&folded_storage, false).others.len(), 1);
}

#[test]
fn missing_object_of_the_user_is_a_cause_though_nothing_is_degraded() {
    let secret = "Secret scylla/agent does not exist: create it";
    let rolling = "StatefulSet scylla/b is rolling out: 1 of 2 node(s) are available.";
    let stateful_sets = [
        "ConfigMap scylla/settings does not exist: create it",
        secret,
        &format!("StatefulSet scylla/a is not created yet. Waiting for {USER_OBJECTS}."),
        rolling,
    ];
    let conditions = [
        not_created(),
        condition("StatefulSetControllerProgressing", "WaitingForConfigMap", &stateful_sets.join("\n")),
        condition("AgentTokenControllerProgressing", "WaitingForSecret", secret),
        condition("CertControllerProgressing", "WaitingForAddresses", "nodes a-0 and b-0 have no addresses"),
        progressing(Component::Job, "Service scylla/a-0 has no ring hash"),
    ];
    let folded = fold(&conditions, false);
    assert_eq!(
        lines(&folded.causes),
        [
            ("AgentTokenControllerProgressing", secret),
            ("StatefulSetControllerProgressing", "ConfigMap scylla/settings does not exist: create it"),
            ("StatefulSetControllerProgressing", secret),
            ("StatefulSetControllerProgressing", rolling),
        ]
    );
    assert_eq!((folded.others.as_slice(), folded.consequences), ([].as_slice(), 4));
    assert_eq!(folded.left_out(), Some(("4 more messages follow from these".into(), "them")));
    let conditions = [not_available(), conditions[2].clone()];
    assert_eq!(fold(&conditions, false).others.len(), 1, "nodes that are not ready have another cause");
}

/// The operator requests the decommission again when the other nodes are cleaned up.
#[test]
fn cleanup_does_not_follow_from_a_refused_decommission() {
    let refused =
        condition("StatefulSetControllerDegraded", "DecommissionRefused", "Node a-2 cannot be decommissioned");
    let conditions = [refused, progressing(Component::Job, "Node a-0 is cleaned up"), not_available()];
    let folded = fold(&conditions, false);
    assert_eq!((folded.causes.len(), folded.others.len(), folded.consequences), (1, 2, 0));
}

#[test]
fn certificates_that_wait_for_addresses_are_shown_unless_nodes_are_missing() {
    let waiting = condition("CertControllerProgressing", "WaitingForAddresses", "node a-0 has no address");
    let signing = condition("CertControllerProgressing", "WaitingForSignature", "Secret scylla/serving is not signed");
    for (cause, condition, consequences) in [
        (degraded(Component::StatefulSet, "x"), &waiting, 1),
        (degraded(Component::Job, "x"), &waiting, 0),
        (degraded(Component::Certificates, "x"), &waiting, 0),
        (degraded(Component::StatefulSet, "x"), &signing, 0),
    ] {
        assert_eq!(fold(&[cause.clone(), condition.clone()], false).consequences, consequences, "{cause:?}");
    }
}

#[test]
fn nothing_follows_from_components_that_are_only_progressing() {
    let conditions = [
        not_available(),
        condition("ServiceControllerProgressing", "Written", "Just written: Service scylla/a-0."),
        progressing(Component::StatefulSet, "StatefulSet scylla/a is rolling out"),
    ];
    let folded = fold(&conditions, false);
    assert_eq!((folded.causes.len(), folded.others.len(), folded.left_out()), (0, 3, None));
}

#[test]
fn everything_waits_for_an_object_that_cannot_be_observed() {
    let conditions = [
        condition(OBSERVATION, "NoAnswer", "no answer from the API server"),
        degraded(Component::Job, "a Job has failed"),
        progressing(Component::ServiceAccount, "Just written: ServiceAccount scylla/orders."),
        progressing(Component::Storage, "PersistentVolumeClaim scylla/data-a-0 is being resized"),
    ];
    let folded = fold(&conditions, false);
    assert_eq!((folded.causes.len(), folded.others.len(), folded.consequences), (2, 0, 2));
}

#[test]
fn at_most_three_messages_of_a_component_are_shown() {
    let many = "StatefulSet scylla/a is rolling out\n\nStatefulSet scylla/b waits\nStatefulSet scylla/c waits\n\
                StatefulSet scylla/d waits";
    let conditions = [not_available(), progressing(Component::StatefulSet, many)];
    let folded = fold(&conditions, false);
    let stateful_set = "StatefulSetControllerProgressing";
    assert_eq!(
        lines(&folded.others),
        [
            ("StatefulSetControllerAvailable", "0 of 3 node(s) are ready"),
            (stateful_set, "StatefulSet scylla/a is rolling out"),
            (stateful_set, "StatefulSet scylla/b waits"),
        ]
    );
    assert_eq!((folded.consequences, folded.omitted), (0, 2));
    assert_eq!(folded.left_out(), Some(("2 more messages are not shown".into(), "them")));

    let not_updated = condition("StatefulSetControllerAvailable", "MembersNotUpdated", "0 of 3 node(s) are updated");
    let conditions = [degraded(Component::StatefulSet, "1\n2\n3\n4"), not_updated];
    let folded = fold(&conditions, false);
    assert_eq!((folded.causes[0].messages.len(), folded.consequences, folded.omitted), (3, 1, 1));
    let clause = "1 more message follows from this, and 1 more message is not shown";
    assert_eq!(folded.left_out(), Some((clause.into(), "them")));

    let faults = condition(OBSERVATION, "InvalidSpecification", "1\n2\n3\n4");
    let conditions = [faults, progressing(Component::Service, "x")];
    let folded = fold(&conditions, false);
    assert_eq!(folded.causes[0].messages.len(), 4, "all faults of a specification are shown");
    assert_eq!(folded.left_out(), Some(("1 more message follows from this".into(), "it")));
}

#[test]
fn all_shows_every_message_with_the_causes_first() {
    let conditions = [
        not_created(),
        degraded(Component::Job, "1\n2\n3\n4"),
        degraded(Component::Service, "a Service is rejected"),
        progressing(Component::Storage, "PersistentVolumeClaim scylla/data-a-0 is being resized"),
        progressing(Component::StatefulSet, "Waiting for component ServiceController, which could not be applied."),
    ];
    let folded = fold(&conditions, true);
    let shown: Vec<&str> =
        lines(&folded.causes).into_iter().chain(lines(&folded.others)).map(|(name, _)| name).collect();
    let expected = [
        "ServiceControllerDegraded",
        "JobControllerDegraded",
        "JobControllerDegraded",
        "JobControllerDegraded",
        "JobControllerDegraded",
        "StatefulSetControllerAvailable",
        "StatefulSetControllerProgressing",
        "StorageControllerProgressing",
    ];
    assert_eq!(shown, expected);
    assert_eq!(folded.left_out(), None);
}

#[test]
fn conditions_that_stop_all_work_come_first_and_cause_nothing() {
    let conditions = [
        condition("Paused", "Paused", "the annotation stops all work"),
        progressing(Component::StatefulSet, "StatefulSet scylla/a is rolling out"),
        condition("ScyllaOperatorActive", "ScyllaOperatorActive", ""),
    ];
    let folded = fold(&conditions, false);
    assert_eq!(
        lines(&folded.causes),
        [("Paused", "the annotation stops all work"), ("ScyllaOperatorActive", "ScyllaOperatorActive")],
        "a condition without a message shows its reason"
    );
    assert_eq!((folded.others.len(), folded.left_out()), (1, None));
}
