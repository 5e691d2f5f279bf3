//! The ring as the REST API of a node reports it, which faults can change.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Node, State};
use crate::membership::{HostId, Member, Membership, Status};

/// The ring as one node reports it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) members: Membership,
    pub(crate) up: BTreeSet<HostId>,
}

impl Node {
    /// Returns the ring as the node reports it.
    pub(crate) fn view(&self) -> View {
        self.with(|state| {
            if let Some(frozen) = &state.frozen_view {
                return frozen.clone();
            }
            let mut view = View { members: state.members.clone(), up: self.up(state) };
            for member in state.members.present() {
                if named(&state.faults.report_down, &member.host_id, member.address) {
                    view.up.remove(&member.host_id);
                }
                if named(&state.faults.report_up, &member.host_id, member.address) {
                    view.up.insert(member.host_id.clone());
                }
            }
            view
        })
    }

    /// Returns the nodes that are up, including this node while it gossips.
    pub(super) fn up(&self, state: &State) -> BTreeSet<HostId> {
        let time_limit = self.config.pace.failure_timeout;
        let last_response = state
            .last_response
            .iter()
            .filter(|(_, last_response)| last_response.elapsed() < time_limit)
            .map(|(host_id, _)| host_id.clone());
        last_response.chain(state.is_gossiping.then(|| self.own.clone())).collect()
    }
}

/// Whether a list of host IDs and addresses names a node.
pub(super) fn named(list: &[String], host_id: &HostId, address: IpAddr) -> bool {
    list.iter().any(|name| name == host_id.as_str() || name.parse() == Ok(address))
}

impl View {
    pub(crate) fn is_up(&self, member: &Member) -> bool {
        self.up.contains(&member.host_id)
    }

    /// Returns the addresses of nodes that are up. A node that replaces another one at the same address is omitted
    /// until it has joined: the address still belongs to the dead one.
    pub(crate) fn live(&self) -> Vec<IpAddr> {
        let takes_over = |member: &Member| {
            member.status == Status::Joining && self.members.ring().any(|other| other.address == member.address)
        };
        self.members.present().filter(|m| self.is_up(m) && !takes_over(m)).map(|member| member.address).collect()
    }

    /// Returns the addresses of nodes that are down.
    pub(crate) fn down(&self) -> Vec<IpAddr> {
        let live = self.live();
        let down = self.members.present().filter(|member| !self.is_up(member)).map(|member| member.address);
        down.filter(|address| !live.contains(address)).collect()
    }

    pub(crate) fn with_status(&self, status: Status) -> Vec<IpAddr> {
        self.members.present().filter(|member| member.status == status).map(|member| member.address).collect()
    }
}
