//! Defragment: which member is defragmented next.

use std::time::Duration;

use messina_api::druid::v1alpha1::{DefragmentConfig, MemberOutcome};
use serde_json::Value;

use super::{TaskError, decode, seconds};

/// Default of `config.timeoutSeconds`.
const DEFAULT_TIMEOUT: u32 = 1800;
/// Default of `config.memberTimeoutSeconds`.
const DEFAULT_MEMBER_TIMEOUT: u32 = 300;

/// The options of a Defragment task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long the task may run.
    pub deadline: Duration,
    /// How long the defragmentation of one member may take.
    pub member: Duration,
}

impl Config {
    /// Reads the options of a task.
    pub fn read(config: Option<&Value>) -> Result<Self, TaskError> {
        let config: DefragmentConfig = decode(config)?;
        Ok(Self {
            deadline: seconds("timeoutSeconds", config.timeout_seconds, DEFAULT_TIMEOUT)?,
            member: seconds("memberTimeoutSeconds", config.member_timeout_seconds, DEFAULT_MEMBER_TIMEOUT)?,
        })
    }
}

/// The observed health of a member of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberHealth {
    /// The member ID.
    pub id: u64,
    /// The name; empty before the member has started for the first time.
    pub name: String,
    /// Whether the member is a learner, which does not vote and which etcd refuses to defragment.
    pub is_learner: bool,
    /// ID of the leader that the member reports; zero if it knows none.
    pub leader: u64,
    /// Why the member is unhealthy.
    pub problem: Option<String>,
}

/// Which member is defragmented next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextMember {
    /// The member with this ID.
    Defragment(u64),
    /// None: all members are defragmented.
    Done,
    /// None at present, for this reason.
    Blocked(String),
}

/// Returns the next member to defragment: followers by name, the leader last, and none while a member is unhealthy. A
/// member does not respond while it defragments, so the others must be able to serve without it. Learners are skipped.
pub fn next_member(members: &[MemberHealth], done: &[MemberOutcome]) -> NextMember {
    let members: Vec<&MemberHealth> = members.iter().filter(|member| !member.is_learner).collect();
    if members.is_empty() {
        return NextMember::Blocked("etcd lists no members".into());
    }
    for member in &members {
        if let Some(problem) = &member.problem {
            return NextMember::Blocked(format!("member {} is unhealthy: {problem}", display_name(member)));
        }
    }
    let leader = members[0].leader;
    if leader == 0 || members.iter().any(|member| member.leader != leader) {
        return NextMember::Blocked("the members do not agree on a leader".into());
    }
    if !members.iter().any(|member| member.id == leader) {
        return NextMember::Blocked("the leader is not among the members".into());
    }
    let is_done =
        |member: &MemberHealth| done.iter().any(|one| one.name.as_deref() == Some(display_name(member).as_str()));
    let mut remaining: Vec<&MemberHealth> = members.into_iter().filter(|member| !is_done(member)).collect();
    remaining.sort_by_key(|member| (member.id == leader, display_name(member)));
    remaining.first().map_or(NextMember::Done, |member| NextMember::Defragment(member.id))
}

/// Whether the operator may connect to a member of an etcd cluster in this namespace at this client URL. etcd reports
/// the URL, and any client that can write to etcd can change it; so the operator connects only to DNS names of
/// Services in the namespace, and never to an IP address. `domain` is the DNS domain of the Kubernetes cluster, if it
/// is known.
pub fn may_serve_at(address: &str, namespace: &str, domain: Option<&str>) -> bool {
    let Some(host) = host(address) else { return false };
    let host = host.strip_suffix('.').unwrap_or(host);
    let in_cluster = domain.and_then(|domain| host.strip_suffix(domain)?.strip_suffix('.')).unwrap_or(host);
    let name = in_cluster.strip_suffix(".svc").and_then(|name| name.strip_suffix(namespace));
    name.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

fn host(address: &str) -> Option<&str> {
    let (_, rest) = address.split_once("://")?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    // Anything else could be read in another way by the client that connects.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    host.bytes().all(is_name).then_some(host)
}

/// Returns the name of a member in messages: its name, or its ID in hexadecimal.
pub fn display_name(member: &MemberHealth) -> String {
    if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(id: u64, leader: u64) -> MemberHealth {
        MemberHealth { id, name: format!("main-{id}"), is_learner: false, leader, problem: None }
    }

    fn outcome(id: u64) -> MemberOutcome {
        MemberOutcome { name: Some(format!("main-{id}")), ..MemberOutcome::default() }
    }

    #[test]
    fn next_member_is_a_follower_before_the_leader() {
        let members = [member(1, 2), member(2, 2), member(3, 2)];
        let mut done = Vec::new();
        let mut order = Vec::new();
        while let NextMember::Defragment(id) = next_member(&members, &done) {
            order.push(id);
            done.push(outcome(id));
        }
        assert_eq!(order, [1, 3, 2]);
        assert_eq!(next_member(&members, &done), NextMember::Done);
    }

    #[test]
    fn next_member_skips_defragmented_members_when_the_leader_changes() {
        // Member 1 is defragmented. Member 2 was the leader, and now member 1 is.
        assert_eq!(next_member(&[member(1, 1), member(2, 1), member(3, 1)], &[outcome(1)]), NextMember::Defragment(2));
    }

    #[test]
    fn next_member_is_no_learner() {
        let learner = MemberHealth { is_learner: true, problem: Some("it is new".into()), ..member(1, 0) };
        assert_eq!(next_member(&[learner.clone(), member(2, 2)], &[]), NextMember::Defragment(2));
        assert_eq!(next_member(&[learner.clone(), member(2, 2)], &[outcome(2)]), NextMember::Done);
        assert!(matches!(next_member(&[learner], &[]), NextMember::Blocked(_)));
    }

    #[test]
    fn next_member_is_blocked_while_a_member_is_unhealthy() {
        let unhealthy = MemberHealth { problem: Some("it does not respond".into()), ..member(3, 0) };
        assert!(
            matches!(next_member(&[member(1, 1), member(2, 1), unhealthy], &[]), NextMember::Blocked(why) if why.contains("main-3"))
        );
        assert!(
            matches!(next_member(&[member(1, 1), member(2, 0)], &[]), NextMember::Blocked(_)),
            "a member knows no leader"
        );
        assert!(matches!(next_member(&[member(1, 9)], &[]), NextMember::Blocked(_)), "the leader is not a member");
        assert!(matches!(next_member(&[], &[]), NextMember::Blocked(_)));
    }

    #[test]
    fn may_serve_at_accepts_only_names_of_the_namespace() {
        for address in [
            "https://main-0.main-peer.shop.svc:2379",
            "http://main-0.main-peer.shop.svc.cluster.local:2379",
            "https://main-client.shop.svc.:2379/",
        ] {
            assert!(may_serve_at(address, "shop", Some("cluster.local")), "{address}");
        }
        for address in [
            "",
            "main-0.main-peer.shop.svc:2379",
            "https://",
            "https://api.example.com:443",
            "https://main-0.main-peer.shop:2379",
            "https://main-0.main-peer.shop.svc.cluster.other:2379",
            "https://main-0.main-peer.other.svc:2379",
            "https://shop.example.com:2379",
            "https://main-0.main-peer.shop.svc.example.com:2379",
            "https://main-0.workshop.svc:2379",
            "https://shop.svc:2379",
            "https://main-0.shop.example.com",
            "https://localhost:2379",
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080#main-0.main-peer.shop.svc:2379",
            "http://x@main-0.main-peer.shop.svc:2379",
            "http://evil.example.com/main-0.main-peer.shop.svc",
            "https://10.0.0.7:2379",
            "https://[fd00::7]:2379",
            "http://169.254.169.254",
            "http://[::1]:8080",
            "http://[::ffff:127.0.0.1]:8080",
            "http://0.0.0.0:8080",
        ] {
            assert!(!may_serve_at(address, "shop", Some("cluster.local")), "{address}");
        }
    }

    proptest! {
        #[test]
        fn every_member_is_defragmented_once_under_any_leader(leaders in proptest::collection::vec(1_u64..=5, 5..20)) {
            let mut done: Vec<MemberOutcome> = Vec::new();
            for leader in leaders.iter().cycle().take(100) {
                let members: Vec<MemberHealth> = (1..=5).map(|id| member(id, *leader)).collect();
                match next_member(&members, &done) {
                    NextMember::Defragment(id) => {
                        prop_assert!(!done.contains(&outcome(id)));
                        prop_assert!(id != *leader || done.len() == 4, "the leader is last");
                        done.push(outcome(id));
                    }
                    other => {
                        prop_assert_eq!(other, NextMember::Done);
                        prop_assert_eq!(done.len(), 5);
                    }
                }
            }
            prop_assert_eq!(done.len(), 5);
        }
    }
}
