//! The Service of a node, or of all nodes.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use messina_api::names::{
    annotation,
    label::{self, value},
};

use crate::{
    datacenter::model::facts::ObjectReference,
    metadata,
    node::{
        address::ServiceAddresses,
        answer::RingAnswer,
        decommission::Refusal,
        facts::has_joined,
        ring::is_under_maintenance,
        upgrade::{UpgradeAnswer, UpgradeRequest},
    },
};

/// A malformed annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// The parsed value of an annotation; none if it is absent.
pub(crate) type Parsed<T> = Option<Result<T, Unreadable>>;

/// The endpoints of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One node.
    Member,
    /// All nodes.
    Identity,
}

/// The Service of a node, or of all nodes. The operator and the sidecar of the node communicate by its labels and
/// annotations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeService {
    pub(crate) reference: ObjectReference,
    pub(crate) created: Option<Timestamp>,
    pub(crate) role: Option<Role>,
    pub(crate) is_load_balancer: bool,
    pub(crate) addresses: ServiceAddresses,
    pub(crate) host_id: Option<String>,
    /// Whether its node has ever joined the ring.
    pub(crate) has_joined: bool,
    /// Whether the sidecar has reported if its node has joined.
    pub(crate) says_whether_joined: bool,
    pub(crate) is_under_maintenance: bool,
    /// Whether the sidecar answers questions about the ring.
    pub(crate) answers: bool,
    pub(crate) ring_question: Option<String>,
    pub(crate) ring_answer: Option<RingAnswer>,
    /// The hash of the token ring that its node sees.
    pub(crate) ring_hash: Option<String>,
    /// The hash of the token ring for which its node was last cleaned up.
    pub(crate) cleaned_up_ring_hash: Option<String>,
    /// The label by which the operator requests a decommission and the sidecar confirms it.
    pub(crate) decommissioned: Option<String>,
    /// The host ID of the node to decommission.
    pub(crate) leaving_host_id: Option<String>,
    /// The host ID of the node whose decommission has begun.
    pub(crate) leaving_began: Option<String>,
    /// Why ScyllaDB refuses to decommission the node.
    pub(crate) leaving_refused: Parsed<Refusal>,
    /// The label by which a user or the operator requests a replacement.
    pub(crate) replace: Option<String>,
    /// The host ID of the node that is replaced.
    pub(crate) replacing_node_host_id: Option<String>,
    /// UIDs of the claim and the pod of the node that is replaced.
    pub(crate) replacing_claim: Option<String>,
    /// The UID of the pod that has found an empty disk instead of its node's data.
    pub(crate) empty_disk: Option<String>,
    /// The UID of the pod that has to be recreated.
    pub(crate) restart_request: Option<String>,
    pub(crate) upgrade_request: Parsed<UpgradeRequest>,
    pub(crate) upgrade_answer: Parsed<UpgradeAnswer>,
}

impl NodeService {
    pub(crate) fn of(service: &Service) -> Self {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        let label = |key| owned(metadata::label(service, key));
        let annotation = |key| owned(metadata::annotation(service, key));
        let annotations = service.metadata.annotations.as_ref();
        let said = |key| metadata::annotation(service, key);
        Self {
            reference: ObjectReference::of(&service.metadata),
            created: service.metadata.creation_timestamp.as_ref().map(|time| time.0),
            role: metadata::label(service, label::SERVICE_TYPE).and_then(role),
            is_load_balancer: service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer"),
            addresses: ServiceAddresses::of(service),
            host_id: annotation(annotation::HOST_ID),
            has_joined: annotations.is_some_and(has_joined),
            says_whether_joined: said(annotation::NODE_JOINED).is_some(),
            is_under_maintenance: is_under_maintenance(service.metadata.labels.as_ref()),
            answers: said(annotation::SIDECAR_PROTOCOL) == Some(annotation::SIDECAR_PROTOCOL_VALUE),
            ring_question: annotation(annotation::RING_QUESTION),
            ring_answer: said(annotation::RING_ANSWER).and_then(RingAnswer::parse),
            ring_hash: annotation(annotation::CURRENT_TOKEN_RING_HASH),
            cleaned_up_ring_hash: annotation(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH),
            decommissioned: label(label::DECOMMISSIONED),
            leaving_host_id: annotation(annotation::LEAVING_HOST_ID),
            leaving_began: annotation(annotation::LEAVING_BEGAN),
            leaving_refused: said(annotation::LEAVING_REFUSED).map(|text| Refusal::of(text).ok_or(Unreadable)),
            replace: label(label::REPLACE),
            replacing_node_host_id: label(label::REPLACING_NODE_HOST_ID),
            replacing_claim: annotation(annotation::REPLACING_CLAIM),
            empty_disk: annotation(annotation::EMPTY_DISK),
            restart_request: annotation(annotation::RESTART_REQUEST),
            upgrade_request: said(annotation::UPGRADE_REQUEST)
                .map(|_| annotations.and_then(UpgradeRequest::of).ok_or(Unreadable)),
            upgrade_answer: said(annotation::UPGRADE_ANSWER)
                .map(|_| annotations.and_then(UpgradeAnswer::of).ok_or(Unreadable)),
        }
    }

    pub(crate) fn is_member(&self) -> bool {
        self.role == Some(Role::Member)
    }

    /// Whether its node is being replaced.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replacing_node_host_id.is_some() && self.replacing_node_host_id == self.host_id
    }

    /// Whether a replacement of its node is requested or in progress.
    pub(crate) fn is_to_be_replaced(&self) -> bool {
        self.replace.is_some() || self.replacing_node_host_id.is_some()
    }

    /// Whether it has annotations of an upgrade.
    pub(crate) fn is_upgrading(&self) -> bool {
        self.upgrade_request.is_some() || self.upgrade_answer.is_some()
    }
}

fn role(text: &str) -> Option<Role> {
    match text {
        value::MEMBER => Some(Role::Member),
        value::IDENTITY => Some(Role::Identity),
        _ => None,
    }
}
