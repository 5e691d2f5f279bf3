//! The table: every field of the specification of a ScyllaDBDatacenter.

use messina_api::names::annotation;
use messina_testbed::deploy::SCYLLA_IMAGE;
use serde_json::{Value, json};

use super::row::{
    Expected::{Certifies, Has, Is, SameAs, Says},
    Object::{
        AlternatorCertificate, Datacenter, IdentityService, Ingress, ManagedConfig, Node, Pod, Service, SnitchConfig,
        StatefulSet,
    },
    Rack::{self, Own, Template},
    Row,
    Setup::{Alternative, Everything, Ipv6, Nodes, Refused},
    row,
};

const MANAGED_CONFIG: &str = "/data/scylladb-managed-config.yaml";
const SNITCH_CONFIG: &str = "/data/cassandra-rackdc.properties";
const CERTIFICATE: &str = "/data/tls.crt";
const POD: &str = "/spec/template/spec";
const POD_METADATA: &str = "/spec/template/metadata";
const CLAIM: &str = "/spec/volumeClaimTemplates/0";
const COMMAND: &str = "/spec/template/spec/containers/name=scylla/command";
const PROGRESS: &str = "/status/conditions/type=ServiceControllerProgressing/message";
const DEGRADED: &str = "/status/conditions/type=Degraded/message";

/// The rows.
pub(super) fn rows() -> Vec<Row> {
    let racks = [Template, Own].into_iter().flat_map(rack_rows);
    let rows = datacenter_rows().into_iter().chain(scylladb_rows()).chain(expose_rows()).chain(racks);
    rows.collect()
}

fn datacenter_rows() -> Vec<Row> {
    vec![
        row("spec.metadata.labels")
            .set(Everything, json!({"example.com/pods": "labelled"}))
            .among(StatefulSet(Template), format!("{POD_METADATA}/labels")),
        row("spec.metadata.annotations")
            .set(Everything, json!({"example.com/pods": "annotated"}))
            .among(StatefulSet(Template), format!("{POD_METADATA}/annotations")),
        row("spec.clusterName")
            .set(Everything, json!("everything"))
            .seen(ManagedConfig, MANAGED_CONFIG, Says("cluster_name: \"everything\"\n"))
            .set(Nodes, json!("cluster of nodes"))
            .at(Node(Template, &["simctl", "config", "cluster_name"]), ""),
        row("spec.datacenterName")
            .set(Everything, json!("east"))
            .seen(SnitchConfig(Template), SNITCH_CONFIG, Says("dc=east\n"))
            .set(Nodes, json!("west"))
            .seen(Node(Template, &["simctl", "state"]), "/members", Has(json!([{"datacenter": "west"}]))),
        row("spec.scyllaDBManagerAgent.image")
            .set(Everything, json!("example.com/agent:1.2.3"))
            .at(StatefulSet(Template), format!("{POD}/containers/name=scylla-manager-agent/image")),
        row("spec.imagePullSecrets")
            .set(Everything, json!([{"name": "registry"}]))
            .at(StatefulSet(Template), format!("{POD}/imagePullSecrets")),
        row("spec.dnsPolicy")
            .set(Everything, json!("ClusterFirst"))
            .at(StatefulSet(Template), format!("{POD}/dnsPolicy")),
        row("spec.dnsDomains")
            .set(Everything, json!(["db.example.com"]))
            .seen(Ingress, "/spec/rules/host=cql.db.example.com/host", Is(json!("cql.db.example.com")))
            .seen(AlternatorCertificate, CERTIFICATE, Certifies(b"cql.db.example.com")),
        row("spec.ipFamilies")
            .set(Ipv6, json!(["IPv6"]))
            .seen(ManagedConfig, MANAGED_CONFIG, Says("listen_address: \"::\"\n"))
            .seen(Datacenter, "/status/conditions/type=ServiceControllerDegraded/message", Says("IPv6")),
        row("spec.ipFamilyPolicy")
            .set(Everything, json!("PreferDualStack"))
            .at(Service(Template), "/spec/ipFamilyPolicy")
            .at(IdentityService, "/spec/ipFamilyPolicy"),
        row("spec.forceRedeploymentReason").set(Everything, json!("because")).seen(
            StatefulSet(Template),
            format!("{POD_METADATA}/annotations"),
            Has(json!({annotation::FORCE_REDEPLOYMENT_REASON: "because"})),
        ),
        row("spec.readinessGates")
            .set(Everything, json!([{"conditionType": "example.com/balanced"}]))
            .at(StatefulSet(Template), format!("{POD}/readinessGates")),
        row("spec.minReadySeconds").set(Everything, json!(7)).at(StatefulSet(Template), "/spec/minReadySeconds"),
        row("spec.minTerminationGracePeriodSeconds")
            .set(Everything, json!(20))
            .seen(StatefulSet(Template), format!("{POD}/terminationGracePeriodSeconds"), Is(json!(920)))
            .seen(StatefulSet(Template), COMMAND, Has(json!(["--serve-seconds-before-stop=20"]))),
        // The first node's disk is lost in this datacenter and in the base.
        row("spec.disableAutomaticOrphanedNodeReplacement").set(Everything, json!(false)).seen(
            Datacenter,
            PROGRESS,
            Says("has to be replaced"),
        ),
        row("spec.enableParallelNodeOperations").set(Alternative, json!(false)).seen(
            StatefulSet(Template),
            "/spec/podManagementPolicy",
            Is(json!("OrderedReady")),
        ),
    ]
}

fn scylladb_rows() -> Vec<Row> {
    const VOLUME: &str = "/spec/template/spec/volumes/name=scylladb-alternator-serving-certs/secret/secretName";
    let options = |field: &str| format!("spec.scyllaDB.alternatorOptions.{field}");
    vec![
        row("spec.scyllaDB.image")
            .set(Everything, json!("docker.io/scylladb/scylla:2026.2.3"))
            .at(StatefulSet(Template), format!("{POD}/containers/name=scylla/image"))
            .set(Nodes, json!(SCYLLA_IMAGE))
            .at(Pod(Own), "/spec/containers/name=scylla/image"),
        row("spec.scyllaDB.externalSeeds").set(Everything, json!(["seed.example.com", "10.9.8.7"])).seen(
            StatefulSet(Template),
            COMMAND,
            Has(json!(["--external-seeds=seed.example.com,10.9.8.7"])),
        ),
        row("spec.scyllaDB.additionalScyllaDBArguments")
            .set(Everything, json!(["--blocked-reactor-notify-ms=77"]))
            .among(StatefulSet(Template), COMMAND)
            .set(Nodes, json!(["--blocked-reactor-notify-ms=78"]))
            .seen(Node(Template, &["simctl", "config", "blocked_reactor_notify_ms"]), "", Is(json!(78))),
        row("spec.scyllaDB.enableDeveloperMode")
            .set(Everything, json!(true))
            .seen(StatefulSet(Template), COMMAND, Has(json!(["--developer-mode=1"])))
            .set(Nodes, json!(true))
            .seen(Node(Template, &["simctl", "config", "developer_mode"]), "", Is(json!(1))),
        row(options("writeIsolation"))
            .set(Everything, json!("forbid_rmw"))
            .seen(ManagedConfig, MANAGED_CONFIG, Says("alternator_write_isolation: \"forbid_rmw\"\n"))
            .set(Nodes, json!("only_rmw_uses_lwt"))
            .at(Node(Own, &["simctl", "config", "alternator_write_isolation"]), ""),
        // The first datacenter has the options of both types, so that it is the type that decides.
        row(options("servingCertificate.type"))
            .set(Everything, json!("OperatorManaged"))
            .seen(StatefulSet(Template), VOLUME, Is(json!("everything-local-alternator-serving-certs")))
            .set(Alternative, json!("UserManaged"))
            .seen(StatefulSet(Template), VOLUME, Is(json!("users-certificate"))),
        row(options("servingCertificate.userManagedOptions.secretName"))
            .set(Everything, json!("unused"))
            .set(Alternative, json!("users-certificate"))
            .at(StatefulSet(Template), VOLUME),
        row(options("servingCertificate.operatorManagedOptions.additionalDNSNames"))
            .set(Everything, json!(["balancer.example.com"]))
            .seen(AlternatorCertificate, CERTIFICATE, Certifies(b"balancer.example.com")),
        row(options("servingCertificate.operatorManagedOptions.additionalIPAddresses"))
            .set(Everything, json!(["203.0.113.77"]))
            // An address is preceded by its tag and its length.
            .seen(AlternatorCertificate, CERTIFICATE, Certifies(&[0x87, 4, 203, 0, 113, 77])),
    ]
}

fn expose_rows() -> Vec<Row> {
    let service = |field: &str| format!("spec.exposeOptions.nodeService.{field}");
    let broadcast = |field: &str| format!("spec.exposeOptions.broadcastOptions.{field}");
    let ingress = |field: &str| format!("spec.exposeOptions.cql.ingress.{field}");
    vec![
        row(service("type"))
            .set(Everything, json!("LoadBalancer"))
            .at(Service(Template), "/spec/type")
            .set(Alternative, json!("Headless"))
            .seen(Service(Template), "/spec/clusterIP", Is(json!("None")))
            .seen(StatefulSet(Template), COMMAND, Has(json!(["--nodes-broadcast-address-type=PodIP"]))),
        row(service("labels"))
            .set(Everything, json!({"example.com/services": "labelled"}))
            .among(Service(Template), "/metadata/labels"),
        row(service("annotations"))
            .set(Everything, json!({"example.com/services": "annotated"}))
            .among(Service(Template), "/metadata/annotations"),
        row(service("externalTrafficPolicy"))
            .set(Everything, json!("Local"))
            .at(Service(Template), "/spec/externalTrafficPolicy"),
        row(service("internalTrafficPolicy"))
            .set(Everything, json!("Local"))
            .at(Service(Template), "/spec/internalTrafficPolicy"),
        row(service("allocateLoadBalancerNodePorts"))
            .set(Everything, json!(false))
            .at(Service(Template), "/spec/allocateLoadBalancerNodePorts"),
        row(service("loadBalancerClass"))
            .set(Everything, json!("example.com/balancer"))
            .at(Service(Template), "/spec/loadBalancerClass"),
        row(broadcast("nodes.type"))
            .set(Everything, json!("ServiceLoadBalancerIngress"))
            .seen(
                StatefulSet(Template),
                COMMAND,
                Has(json!(["--nodes-broadcast-address-type=ServiceLoadBalancerIngress"])),
            )
            .set(Nodes, json!("PodIP"))
            .seen(
                Node(Template, &["simctl", "config", "broadcast_address"]),
                "",
                SameAs(Pod(Template), "/status/podIP"),
            ),
        row(broadcast("clients.type"))
            .set(Everything, json!("PodIP"))
            .seen(StatefulSet(Template), COMMAND, Has(json!(["--clients-broadcast-address-type=PodIP"])))
            .set(Nodes, json!("ServiceClusterIP"))
            .seen(
                Node(Template, &["simctl", "config", "broadcast_rpc_address"]),
                "",
                SameAs(Service(Template), "/spec/clusterIP"),
            ),
        // There is no other source than the default: any other value is refused.
        row(broadcast("nodes.podIP.source")).set(Refused, json!("Spec")).seen(
            Datacenter,
            DEGRADED,
            Says("spec.exposeOptions.broadcastOptions.nodes.podIP.source: \"Spec\""),
        ),
        row(broadcast("clients.podIP.source")).set(Refused, json!("Unknown")).seen(
            Datacenter,
            DEGRADED,
            Says("spec.exposeOptions.broadcastOptions.clients.podIP.source: \"Unknown\""),
        ),
        row(ingress("labels"))
            .set(Everything, json!({"example.com/ingresses": "labelled"}))
            .among(Ingress, "/metadata/labels"),
        row(ingress("annotations"))
            .set(Everything, json!({"example.com/ingresses": "annotated"}))
            .among(Ingress, "/metadata/annotations"),
        row(ingress("ingressClassName")).set(Everything, json!("proxy")).at(Ingress, "/spec/ingressClassName"),
    ]
}

/// The fields of the rack template, which are seen in the rack that has none of its own, or those of a rack. Both give
/// the same things different values, so that the table fails when the template's comes before the rack's.
fn rack_rows(rack: Rack) -> Vec<Row> {
    let (level, path, number) = match rack {
        Template => ("template", "spec.rackTemplate", 2),
        Own => ("own", "spec.racks[]", 3),
    };
    let field = |name: &str| format!("{path}.{name}");
    let one = |key: &str| json!({key: level});
    let volume = |name: String| json!([{"name": name, "emptyDir": {"medium": "Memory"}}]);
    let mount = |name: String| json!([{"mountPath": format!("/mnt/{name}"), "name": name}]);
    let cpu = json!({"limits": {"cpu": number.to_string()}});
    let preference = json!({"preference": matching(level), "weight": number});
    let zone = json!([{"key": "example.com/zone", "operator": "In", "values": [level]}]);
    let affinity = |name: &str| format!("{POD}/affinity/{name}");
    let container = |name: &str, field: &str| format!("{POD}/containers/name={name}/{field}");
    let own_name = row("spec.racks[].name")
        .set(Everything, json!("own"))
        .seen(SnitchConfig(Own), SNITCH_CONFIG, Says("rack=own\n"))
        .set(Nodes, json!("own"))
        .seen(Node(Own, &["simctl", "state"]), "/members", Has(json!([{"rack": "own"}])));
    let mut rows = vec![
        row(field("nodes")).set(Everything, json!(number)).at(StatefulSet(rack), "/spec/replicas"),
        row(field("placement.nodeAffinity"))
            .set(Everything, preferred(preference.clone()))
            // The required field comes from topologyLabelSelector.
            .seen(
                StatefulSet(rack),
                affinity("nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution"),
                Is(json!([preference])),
            ),
        row(field("placement.podAffinity"))
            .set(Everything, preferred(json!({"podAffinityTerm": near(level), "weight": number})))
            .at(StatefulSet(rack), affinity("podAffinity")),
        row(field("placement.podAntiAffinity"))
            .set(Everything, preferred(json!({"podAffinityTerm": near(level), "weight": number + 10})))
            .at(StatefulSet(rack), affinity("podAntiAffinity")),
        row(field("placement.tolerations"))
            .set(Everything, json!([{"key": "example.com/taint", "operator": "Equal", "value": level}]))
            .at(StatefulSet(rack), format!("{POD}/tolerations")),
        row(field("topologyLabelSelector")).set(Everything, one("example.com/zone")).seen(
            StatefulSet(rack),
            affinity("nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"),
            Is(json!([{"matchExpressions": zone}])),
        ),
        row(field("scyllaDB.resources"))
            .set(Everything, cpu.clone())
            .among(StatefulSet(rack), container("scylla", "resources")),
        row(field("scyllaDB.storage.capacity"))
            .set(Everything, json!(format!("{number}Gi")))
            .at(StatefulSet(rack), format!("{CLAIM}/spec/resources/requests/storage")),
        row(field("scyllaDB.storage.storageClassName"))
            .set(Everything, json!(format!("{level}-class")))
            .at(StatefulSet(rack), format!("{CLAIM}/spec/storageClassName")),
        row(field("scyllaDB.storage.metadata.labels"))
            .set(Everything, one("example.com/claim"))
            .among(StatefulSet(rack), format!("{CLAIM}/metadata/labels")),
        row(field("scyllaDB.storage.metadata.annotations"))
            .set(Everything, one("example.com/claim"))
            .among(StatefulSet(rack), format!("{CLAIM}/metadata/annotations")),
        row(field("scyllaDB.customConfigMapRef"))
            .set(Everything, json!(format!("{level}-config")))
            .at(StatefulSet(rack), format!("{POD}/volumes/name=scylla-config-volume/configMap/name"))
            .set(Nodes, json!(format!("{level}-config")))
            .seen(Node(rack, &["simctl", "config", "batch_size_warn_threshold_in_kb"]), "", Is(json!(number))),
        row(field("scyllaDB.volumes"))
            .set(Everything, volume(format!("{level}-volume")))
            .among(StatefulSet(rack), format!("{POD}/volumes")),
        row(field("scyllaDB.volumeMounts"))
            .set(Everything, mount(format!("{level}-volume")))
            .among(StatefulSet(rack), container("scylla", "volumeMounts")),
        row(field("scyllaDBManagerAgent.resources"))
            .set(Everything, cpu)
            .among(StatefulSet(rack), container("scylla-manager-agent", "resources")),
        row(field("scyllaDBManagerAgent.customConfigSecretRef"))
            .set(Everything, json!(format!("{level}-agent")))
            .at(StatefulSet(rack), format!("{POD}/volumes/name=scylla-agent-config-volume/secret/secretName")),
        row(field("scyllaDBManagerAgent.volumes"))
            .set(Everything, volume(format!("{level}-agent-volume")))
            .among(StatefulSet(rack), format!("{POD}/volumes")),
        row(field("scyllaDBManagerAgent.volumeMounts"))
            .set(Everything, mount(format!("{level}-agent-volume")))
            .among(StatefulSet(rack), container("scylla-manager-agent", "volumeMounts")),
        row(field("exposeOptions.nodeService.labels"))
            .set(Everything, one("example.com/rack"))
            .among(Service(rack), "/metadata/labels"),
        row(field("exposeOptions.nodeService.annotations"))
            .set(Everything, one("example.com/rack"))
            .among(Service(rack), "/metadata/annotations"),
    ];
    rows.extend((rack == Own).then_some(own_name));
    rows
}

fn preferred(term: Value) -> Value {
    json!({"preferredDuringSchedulingIgnoredDuringExecution": [term]})
}

fn matching(level: &str) -> Value {
    json!({"matchExpressions": [{"key": "example.com/disk", "operator": "In", "values": [level]}]})
}

fn near(level: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"example.com/app": level}}, "topologyKey": "kubernetes.io/hostname"})
}
