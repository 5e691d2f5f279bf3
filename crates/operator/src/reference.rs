//! Compares pages of the documentation with the code: each name is in its table exactly once, and quoted code is real.

use std::{collections::BTreeSet, fs, io, path::Path};

use messina_plan::datacenter::{self, Component};
use messina_text::Reason;

use crate::controllers;

/// Returns the names and the last cells of the rows below a heading, up to the next heading of the same level.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<(&'a str, &'a str)> {
    let (_, section) = page.split_once(heading).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let row = |line: &'a str| line.strip_prefix("| `")?.split_once("` |");
    section.lines().filter_map(row).map(|(name, rest)| (name, rest.trim_matches([' ', '|']))).collect()
}

/// Checks that the rows are these names, A to Z.
fn check(page: &str, heading: &str, expected: BTreeSet<String>) {
    let mut names: Vec<String> = rows(page, heading).into_iter().map(|(name, _)| name.to_owned()).collect();
    let listed: BTreeSet<String> = names.iter().cloned().collect();
    let missing: Vec<&String> = expected.difference(&listed).collect();
    let unknown: Vec<&String> = listed.difference(&expected).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "{heading}: missing {missing:?}, unknown {unknown:?}");
    let sorted = names.is_sorted_by_key(|name| name.to_lowercase());
    names.dedup();
    assert!(sorted && names.len() == expected.len(), "{heading}: not sorted, or a name is there twice");
}

/// Returns the string literals that constants of a source have as their values.
fn constants(source: &str) -> impl Iterator<Item = String> {
    let statements = source.split(';').filter(|statement| statement.contains("const "));
    statements
        .filter_map(|statement| Some(statement.rsplit_once('=')?.1.trim().strip_prefix('"')?.strip_suffix('"')?.into()))
}

/// Returns the first string literals after each occurrence of a call in a source.
fn first_arguments<'a>(source: &'a str, call: &str) -> impl Iterator<Item = &'a str> {
    let calls = source.split(call).skip(1).filter(|rest| rest.trim_start().starts_with('"'));
    calls.filter_map(|rest| rest.split('"').nth(1))
}

#[test]
fn reasons_are_those_of_the_code_with_their_meanings() {
    let page = include_str!("../../../docs/reference/conditions.md");
    let lists = [datacenter::reasons::ALL, messina_runtime::reasons::ALL, controllers::reasons::ALL];
    let declared: Vec<&(Reason, &str)> = lists.into_iter().flatten().collect();
    check(page, "\n## Reasons\n", declared.iter().map(|(reason, _)| reason.as_str().to_owned()).collect());
    for (name, meaning) in rows(page, "\n## Reasons\n") {
        let declared: Vec<&str> =
            declared.iter().filter(|(reason, _)| *reason == name).map(|(_, meaning)| meaning.trim()).collect();
        assert_eq!([meaning], declared[..], "{name}");
    }
}

#[test]
fn condition_types_are_those_of_the_code() {
    let page = include_str!("../../../docs/reference/conditions.md");
    let of_component =
        |component: Component| ["Degraded", "Progressing"].map(|kind| format!("{}{kind}", component.name()));
    let mut expected: BTreeSet<String> = Component::ALL.into_iter().flat_map(of_component).collect();
    let others = ["Available", "Degraded", "Progressing", "ObservationDegraded", "StatefulSetControllerAvailable"];
    expected.extend(others.map(String::from));
    expected.extend([messina_runtime::reasons::PAUSED, controllers::reasons::SCYLLA_OPERATOR_ACTIVE].map(String::from));
    check(page, "\n## Condition types\n", expected);
}

#[test]
fn metrics_are_those_of_the_code() {
    let sources = [
        include_str!("../../runtime/src/metrics.rs"),
        include_str!("controllers/datacenter/counts.rs"),
        include_str!("controllers/datacenter/expiry.rs"),
        include_str!("controllers/etcd_task/metrics.rs"),
        include_str!("controllers/unserved.rs"),
    ];
    let registered: BTreeSet<String> = sources
        .into_iter()
        .flat_map(|source| first_arguments(source, "registry.register("))
        .map(|name| format!("messina_{name}"))
        .collect();
    let page = include_str!("../../../docs/reference/metrics.md");
    let page = page.lines().map(|line| line.replacen("_total`", "`", 1)).collect::<Vec<_>>().join("\n");
    check(&page, "# Metrics\n", registered);
}

#[test]
fn annotations_and_labels_are_those_of_the_code() {
    let page = include_str!("../../../docs/reference/annotations-and-labels.md");
    let sources = [
        ("\n## Annotations\n", include_str!("../../api/src/names/annotation.rs")),
        ("\n## Labels\n", include_str!("../../api/src/names/label.rs")),
        ("\n## Finalizers\n", include_str!("../../api/src/names/finalizer.rs")),
    ];
    for (heading, source) in sources {
        let source = source.split("pub mod value").next().unwrap_or_default();
        check(page, heading, constants(source).filter(|key| key.contains('/') || key == "app").collect());
    }
}

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Adds the text of all Rust sources below a folder.
fn read_sources(folder: &Path, sources: &mut String) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *sources += &fs::read_to_string(&path)?;
        }
    }
    Ok(())
}

/// Whether a code span names a test: a path, or at least three words that are not a metric.
fn is_test_name(span: &str) -> bool {
    let is_identifier = span.bytes().all(|byte| byte.is_ascii_lowercase() || b"_:0123456789".contains(&byte));
    let is_metric = include_str!("../../../docs/reference/metrics.md").contains(&format!("`{span}`"));
    is_identifier && !is_metric && (span.contains("::") || span.matches('_').count() > 1)
}

/// Every row of a table of tests names one, and all tests and files that the page names exist.
#[test]
fn tests_of_the_security_model_exist() -> io::Result<()> {
    let mut sources = String::new();
    for folder in ["crates", "tests"] {
        read_sources(&Path::new(ROOT).join(folder), &mut sources)?;
    }
    let page = include_str!("../../../docs/reference/security.md");
    let mut is_table_of_tests = false;
    for line in page.lines() {
        is_table_of_tests = line.starts_with('|') && (is_table_of_tests || line.ends_with("test |"));
        let is_row = is_table_of_tests && !line.ends_with("test |") && !line.starts_with("|---");
        let spans: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        assert!(!is_row || spans.iter().any(|span| is_test_name(span)), "no test is named: {line}");
        for name in spans.iter().filter(|span| is_test_name(span)).filter_map(|span| span.rsplit(':').next()) {
            let is_declared = sources.contains(&format!("fn {name}(")) || sources.contains(&format!("mod {name};"));
            assert!(is_declared, "there is no test {name}");
        }
        for file in spans.iter().filter(|span| span.ends_with(".rs")) {
            assert!(Path::new(ROOT).join(file).is_file(), "there is no file {file}");
        }
    }
    Ok(())
}

#[test]
fn code_of_the_page_on_task_types_is_quoted_from_the_sources() {
    let page = include_str!("../../../docs/internals/adding-a-task-type.md");
    let sources = [
        include_str!("../../api/src/druid/v1alpha1/config.rs"),
        include_str!("../../api/src/druid/v1alpha1/task.rs"),
        include_str!("../../plan/src/etcd_task/compact.rs"),
        include_str!("controllers/etcd_task/handler.rs"),
        include_str!("controllers/etcd_task/maintenance.rs"),
    ];
    let quotes: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(quotes.len(), sources.len());
    for quote in quotes {
        assert!(sources.iter().any(|source| source.contains(quote)), "no source has this code of the page:\n{quote}");
    }
}
