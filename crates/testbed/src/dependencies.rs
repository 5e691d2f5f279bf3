//! Checks the dependencies of the workspace against `deny.toml`: licences, bans and sources.
//!
//! These are the checks of cargo-deny that need no advisory database, with the crate by which cargo-deny itself parses
//! licences. cargo-deny takes two minutes to build; where it is installed, `cargo deny check` reads the same file.

use std::{collections::BTreeSet, path::Path, process::Command};

use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::{
    cache,
    error::{Error, Result, malformed},
    exec,
};

/// The part of `deny.toml` that is checked here; it may have more.
#[derive(Debug, Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
struct Banned {
    name: String,
}

/// The output of `cargo metadata`.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    /// The registries that it may be published to; none if empty.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

/// Checks the dependencies of the workspace in this folder. Returns their number.
fn check(workspace: &Path) -> Result<usize> {
    let policy: Policy =
        toml::from_str(&cache::read(&workspace.join("deny.toml"))?).map_err(malformed("reading deny.toml"))?;
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version=1", "--locked", "--all-features"]).current_dir(workspace);
    for target in &policy.graph.targets {
        command.args(["--filter-platform", target]);
    }
    let said = exec::output("cargo metadata", &mut command)?;
    let metadata: Metadata = serde_json::from_str(&said).map_err(malformed("reading the output of cargo"))?;
    let used: BTreeSet<&str> = metadata.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
    let packages: Vec<&Package> =
        metadata.packages.iter().filter(|package| used.contains(package.id.as_str())).collect();
    // All others have to be from the same registry.
    let known =
        packages.iter().find(|package| package.name == "serde_json").and_then(|package| package.source.as_deref());
    let usual = known.ok_or_else(|| Error::refused("serde_json is no dependency any more: name another one here"))?;
    let faults: Vec<String> = packages
        .iter()
        .flat_map(|package| {
            faults(package, &policy, usual)
                .into_iter()
                .map(|fault| format!("{} {}: {fault}", package.name, package.version))
        })
        .collect();
    if faults.is_empty() { Ok(packages.len()) } else { Err(Error::refused(faults.join("\n"))) }
}

/// The violations of the policy by a package.
fn faults(package: &Package, policy: &Policy, usual: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if package.source.is_some() || package.publish.as_ref().is_none_or(|registries| !registries.is_empty()) {
        faults.extend(license_fault(package.license.as_deref(), &policy.licenses.allow));
    }
    if policy.bans.deny.iter().any(|banned| banned.name == package.name) {
        faults.push("it is banned by deny.toml; use another crate".into());
    }
    let wildcards = package.dependencies.iter().filter(|one| one.req == "*" && one.path.is_none());
    // A crate from a registry cannot have wildcards.
    let wildcards = wildcards.filter(|_| package.source.is_none());
    faults.extend(wildcards.map(|one| format!("it takes any version of {}; name one", one.name)));
    if let Some(source) = package.source.as_ref().filter(|source| *source != usual) {
        faults.push(format!("it comes from {source}; take it from the usual registry"));
    }
    faults
}

fn license_fault(license: Option<&str>, allow: &[String]) -> Option<String> {
    let Some(license) = license else { return Some("it names no licence".into()) };
    let expression = match Expression::parse_mode(license, ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("its licence {license:?} cannot be read: {}", error.reason)),
    };
    let allowed: Vec<Licensee> = allow.iter().filter_map(|one| Licensee::parse(one).ok()).collect();
    let is_allowed = expression.evaluate(|required| allowed.iter().any(|one| one.satisfies(required)));
    (!is_allowed).then(|| format!("its licence {license:?} is not one that deny.toml allows"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const USUAL: &str = "registry+https://example.com/crates.io-index";

    fn faults_of(change: Value) -> Vec<String> {
        let policy = r#"
            graph.targets = []
            licenses.allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC"]
            bans.deny = [{ name = "openssl-sys" }]
        "#;
        let mut package = json!({
            "id": "x", "name": "x", "version": "1.0.0", "license": "MIT OR GPL-3.0", "source": USUAL,
            "publish": null, "dependencies": [],
        });
        package.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        faults(&serde_json::from_value(package).unwrap(), &toml::from_str(policy).unwrap(), USUAL)
    }

    #[test]
    fn dependencies_of_this_workspace_comply_with_the_policy() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let count = check(&workspace).unwrap_or_else(|error| panic!("{error}"));
        assert!(count > 100, "{count} packages");
    }

    #[test]
    fn allowed_packages_have_no_violation() {
        for good in [
            json!({}),
            json!({"license": "MIT/Apache-2.0"}),
            json!({"license": "Apache-2.0 AND ISC"}),
            json!({"license": "(MIT OR Apache-2.0) AND ISC"}),
            json!({"license": "Apache-2.0 WITH LLVM-exception"}),
            // A package of this workspace, which is not published.
            json!({"license": null, "source": null, "publish": []}),
            json!({"source": null, "dependencies": [{"name": "y", "req": "*", "path": "/y"}]}),
        ] {
            assert_eq!(faults_of(good.clone()), [] as [&str; 0], "{good}");
        }
    }

    #[test]
    fn forbidden_packages_are_reported() {
        for (bad, words) in [
            (json!({"license": "GPL-3.0"}), "\"GPL-3.0\" is not one"),
            (json!({"license": "MIT AND GPL-3.0"}), "is not one"),
            (json!({"license": null}), "names no licence"),
            (json!({"license": "my own"}), "cannot be read"),
            (json!({"name": "openssl-sys"}), "banned"),
            (json!({"source": "git+https://example.com/x"}), "git+https://example.com/x"),
            (json!({"source": "registry+https://example.com/another"}), "registry+https://example.com/another"),
            (json!({"source": null, "dependencies": [{"name": "y", "req": "*", "path": null}]}), "any version of y"),
        ] {
            let faults = faults_of(bad.clone());
            assert!(faults.len() == 1 && faults[0].contains(words), "{bad}: {faults:?}");
        }
    }
}
