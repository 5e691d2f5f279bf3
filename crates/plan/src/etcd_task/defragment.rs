//! Defragment: which member is next.

use std::time::Duration;

use messina_api::druid::v1alpha1::{DefragmentConfig, MemberOutcome};
use serde_json::Value;

use super::{Fault, decode, seconds};

/// How long a task may take, in seconds, unless its options say otherwise.
const DEADLINE: u32 = 1800;
/// The same for one member.
const MEMBER: u32 = 300;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long the task may take.
    pub deadline: Duration,
    /// How long one member may take.
    pub member: Duration,
}

impl Config {
    /// What the options of a task ask for.
    pub fn read(config: Option<&Value>) -> Result<Self, Fault> {
        let config: DefragmentConfig = decode(config)?;
        Ok(Self {
            deadline: seconds("timeoutSeconds", config.timeout_seconds, DEADLINE)?,
            member: seconds("memberTimeoutSeconds", config.member_timeout_seconds, MEMBER)?,
        })
    }
}

/// A member of an etcd cluster, as it was just seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Its name; none before it has started.
    pub name: String,
    /// Whether it only follows and does not vote.
    pub is_learner: bool,
    /// Whom it takes for the leader; zero where it knows none.
    pub leader: u64,
    /// What is wrong with it.
    pub trouble: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This member is defragmented.
    Of(u64),
    /// All are done.
    Over,
    /// Not now, because of this.
    NotNow(String),
}

/// Whose turn it is: followers by name, the leader last, and nobody while a member is not well. A member does not answer
/// while it is at it, so the others must be able to go on without it.
pub fn turn(members: &[Member], done: &[MemberOutcome]) -> Turn {
    if members.is_empty() {
        return Turn::NotNow("etcd names no members".into());
    }
    for member in members {
        if let Some(trouble) = &member.trouble {
            return Turn::NotNow(format!("the member {} is not well: {trouble}", called(member)));
        }
    }
    let leader = members[0].leader;
    if leader == 0 || members.iter().any(|member| member.leader != leader) {
        return Turn::NotNow("the members do not agree on a leader".into());
    }
    if !members.iter().any(|member| member.id == leader) {
        return Turn::NotNow("the leader is not among the members".into());
    }
    let is_done = |member: &Member| done.iter().any(|one| one.name.as_deref() == Some(called(member).as_str()));
    let mut waiting: Vec<&Member> = members.iter().filter(|member| !is_done(member)).collect();
    waiting.sort_by_key(|member| (member.id == leader, called(member)));
    waiting.first().map_or(Turn::Over, |member| Turn::Of(member.id))
}

/// Whether a member of an etcd cluster in this namespace may serve at this address. Which address it is, etcd says, and whoever
/// can write to etcd decides what etcd says; so the operator connects to names of the namespace only, and to no plain
/// address. `domain` is the DNS domain of the Kubernetes cluster, where it is known.
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

/// How a member is called where people read it.
pub fn called(member: &Member) -> String {
    if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(id: u64, leader: u64) -> Member {
        Member { id, name: format!("main-{id}"), is_learner: false, leader, trouble: None }
    }

    fn outcome(id: u64) -> MemberOutcome {
        MemberOutcome { name: Some(format!("main-{id}")), ..MemberOutcome::default() }
    }

    #[test]
    fn followers_come_first_and_the_leader_last() {
        let members = [member(1, 2), member(2, 2), member(3, 2)];
        let mut done = Vec::new();
        let mut order = Vec::new();
        while let Turn::Of(id) = turn(&members, &done) {
            order.push(id);
            done.push(outcome(id));
        }
        assert_eq!(order, [1, 3, 2]);
        assert_eq!(turn(&members, &done), Turn::Over);
    }

    #[test]
    fn a_leader_that_changed_meanwhile_does_not_make_anyone_twice() {
        // 1 is done; 2 led and now 1 does.
        assert_eq!(turn(&[member(1, 1), member(2, 1), member(3, 1)], &[outcome(1)]), Turn::Of(2));
    }

    #[test]
    fn nobody_while_a_member_is_not_well() {
        let ill = Member { trouble: Some("it does not answer".into()), ..member(3, 0) };
        assert!(matches!(turn(&[member(1, 1), member(2, 1), ill], &[]), Turn::NotNow(why) if why.contains("main-3")));
        assert!(matches!(turn(&[member(1, 1), member(2, 0)], &[]), Turn::NotNow(_)), "one knows no leader");
        assert!(matches!(turn(&[member(1, 9)], &[]), Turn::NotNow(_)), "a leader that is not there");
        assert!(matches!(turn(&[], &[]), Turn::NotNow(_)));
    }

    #[test]
    fn members_serve_in_their_own_namespace() {
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
        fn whoever_leads_when_all_get_their_turn_once(leaders in proptest::collection::vec(1_u64..=5, 5..20)) {
            let mut done: Vec<MemberOutcome> = Vec::new();
            for leader in leaders.iter().cycle().take(100) {
                let members: Vec<Member> = (1..=5).map(|id| member(id, *leader)).collect();
                match turn(&members, &done) {
                    Turn::Of(id) => {
                        prop_assert!(!done.contains(&outcome(id)));
                        prop_assert!(id != *leader || done.len() == 4, "the leader is last");
                        done.push(outcome(id));
                    }
                    other => {
                        prop_assert_eq!(other, Turn::Over);
                        prop_assert_eq!(done.len(), 5);
                    }
                }
            }
            prop_assert_eq!(done.len(), 5);
        }
    }
}
