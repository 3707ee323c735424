//! Static checks of the documentation. Commands for a person are typed by a scenario (`it/docs.rs`), or state why
//! not, and are read by the program's own parser (`scheduler-node/tests/docs.rs`).

use std::{collections::BTreeSet, path::Path};

use integration_tests::page::{Fence, Page, root};

/// The languages of fences. `sh` and `sql` are typed as they stand, words in capitals filled in.
const LANGUAGES: [&str; 11] = ["sh", "sql", "toml", "json", "yaml", "python", "go", "java", "js", "promql", "text"];

/// The only accepted reasons for not typing a command. It starts or stops the cluster that the others need, or it
/// needs more than a machine with the three stores has.
const REASONS: [&str; 9] = [
    "needs-the-sources",
    "starts-a-cluster",
    "stops-the-cluster",
    "runs-these-tests",
    "builds-an-image",
    "needs-kubernetes",
    "needs-a-certificate",
    "needs-the-management-plugin",
    // `it/recipes.rs` types it, on servers that it may lock, or `store/tests/migrate_owner.rs` of the node does.
    "has-its-own-scenario",
];

/// Every fence that no test types: page, reason, first line.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "starts-a-cluster", "make demo"),
    ("README.md", "runs-these-tests", "make test"),
    ("README.md", "starts-a-cluster", "make up"),
    (
        "charts/duetime/README.md",
        "needs-kubernetes",
        "helm install duetime charts/duetime --namespace duetime --create-namespace --values my-values.yaml",
    ),
    ("docs/kubernetes.md", "builds-an-image", "make image"),
    (
        "docs/kubernetes.md",
        "needs-kubernetes",
        "helm install duetime charts/duetime --namespace duetime --create-namespace \\",
    ),
    ("docs/kubernetes.md", "needs-kubernetes", "kubectl create namespace duetime"),
    (
        "docs/kubernetes.md",
        "needs-kubernetes",
        "helm install duetime charts/duetime --namespace duetime --values duetime.yaml",
    ),
    (
        "docs/kubernetes.md",
        "needs-kubernetes",
        "helm upgrade duetime charts/duetime --namespace duetime --values duetime.yaml",
    ),
    (
        "docs/kubernetes.md",
        "needs-kubernetes",
        "helm upgrade duetime charts/duetime --namespace duetime --values duetime.yaml --timeout 30m --set \
         migrations.activeDeadlineSeconds=1740",
    ),
    ("docs/kubernetes.md", "needs-kubernetes", "kubectl -n duetime exec duetime-0 -- duetime check"),
    ("docs/kubernetes.md", "needs-kubernetes", "kubectl -n duetime scale statefulset/duetime --replicas 0"),
    ("docs/kubernetes.md", "needs-kubernetes", "kubectl -n duetime apply -f - <<'END'"),
    ("docs/kubernetes.md", "needs-kubernetes", "kubectl -n duetime delete pod restore --now"),
    ("docs/kubernetes.md", "needs-kubernetes", "helm uninstall duetime --namespace duetime --wait"),
    ("docs/performance.md", "starts-a-cluster", "make bench-peers"),
    (
        "docs/performance.md",
        "starts-a-cluster",
        "make bench-peers ARGS='--only duetime,bullmq,raw-rabbitmq --works late,burst --runs 3 --seconds 20'",
    ),
    ("docs/performance.md", "needs-the-sources", "make bench-micro ARGS='heap'"),
    (
        "docs/reliability.md",
        "needs-the-sources",
        "DUETIME_SIM_SEEDS=100000 cargo test --workspace --features scheduler-node/failpoints --lib -- --nocapture \
         simulation",
    ),
    ("docs/reliability.md", "starts-a-cluster", "make soak"),
    (
        "docs/runbooks/DuetimeCertificateExpires.md",
        "needs-a-certificate",
        "openssl x509 -noout -subject -enddate -in CERT_FILE",
    ),
    (
        "docs/runbooks/DuetimeSubmissionsInvalid.md",
        "needs-the-management-plugin",
        "rabbitmqadmin --vhost=VHOST get queue=duetime.submit.invalid ackmode=ack_requeue_true",
    ),
    ("docs/security.md", "has-its-own-scenario", "rabbitmqctl add_vhost duetime"),
    ("docs/security.md", "has-its-own-scenario", "-- nodes and `duetime migrate`"),
    (
        "docs/security.md",
        "has-its-own-scenario",
        "-- gives the rest of the schema to the owner of its table `migration`",
    ),
    ("docs/security.md", "has-its-own-scenario", "etcdctl user add root:PASSWORD"),
    ("docs/start.md", "starts-a-cluster", "make up"),
    ("docs/start.md", "stops-the-cluster", "make down"),
    ("examples/README.md", "starts-a-cluster", "make up && source .local/env"),
];

#[test]
fn every_fence_has_a_language() {
    for page in Page::all() {
        for fence in page.fences() {
            assert!(LANGUAGES.contains(&fence.language()), "{}: `{}` of\n{}", page.name, fence.info, fence.text);
        }
    }
}

#[test]
fn what_looks_like_json_and_toml_is() {
    for page in Page::all() {
        for fence in page.fences() {
            let read = match fence.language() {
                "json" => {
                    serde_json::from_str::<serde_json::Value>(&fence.text).map(drop).map_err(|error| error.to_string())
                }
                "toml" => fence.text.parse::<toml::Table>().map(drop).map_err(|error| error.to_string()),
                _ => Ok(()),
            };
            assert_eq!(read, Ok(()), "{}:\n{}", page.name, fence.text);
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    let pages = Page::all();
    for page in &pages {
        for link in page.links().into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page.name).parent().expect("a file has a folder");
            let target = if path.is_empty() { root().join(&page.name) } else { root().join(folder).join(path) };
            assert!(target.exists(), "{}: {link} leads nowhere", page.name);
            if anchor.is_empty() {
                continue;
            }
            let target = target.canonicalize().expect("it exists");
            let found =
                pages.iter().find(|page| root().join(&page.name).canonicalize().is_ok_and(|path| path == target));
            let found = found.unwrap_or_else(|| panic!("{}: {link} is no page", page.name));
            assert!(found.anchors().contains(anchor), "{}: {link}: {} has no such heading", page.name, found.name);
        }
    }
}

#[test]
fn every_path_that_is_named_exists() {
    let entries = std::fs::read_dir(root()).expect("the repository").flatten();
    let folders: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| format!("{}/", entry.file_name().to_string_lossy()))
        .filter(|name| !name.starts_with('.') && name != "target/")
        .collect();
    for page in Page::all() {
        for word in page.words_of_code() {
            let is_path =
                folders.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '*', '<', '…', '{']);
            assert!(!is_path || root().join(&word).exists(), "{}: there is no {word}", page.name);
        }
    }
}

#[test]
fn what_is_not_run_is_on_the_list() {
    let mut not_run = Vec::new();
    for page in Page::all() {
        for fence in page.fences() {
            assert!(
                ["sh", "sql"].contains(&fence.language()) || fence.no_test().is_none(),
                "{}: {}",
                page.name,
                fence.info
            );
            assert!(fence.no_test().is_none_or(|reason| REASONS.contains(&reason)), "{}: {}", page.name, fence.info);
            let first = fence.text.lines().next().unwrap_or_default();
            let begins = first.split(" #").next().unwrap_or_default().trim_end().to_owned();
            not_run.extend(fence.no_test().map(|reason| (page.name.clone(), reason.to_owned(), begins)));
        }
    }
    let mut not_run: Vec<(&str, &str, &str)> =
        not_run.iter().map(|(page, reason, begins)| (page.as_str(), reason.as_str(), begins.as_str())).collect();
    not_run.sort_by_key(|(page, ..)| *page);
    assert_eq!(not_run, NOT_RUN);
}

/// A scenario's shell finds `duetime` by itself.
#[test]
fn a_page_that_starts_a_cluster_puts_duetime_on_the_path() {
    for page in Page::all() {
        for fence in page.fences().iter().filter(|fence| fence.text.contains("source .local/env")) {
            assert!(fence.text.contains("\nPATH=$PWD/target/release:$PATH"), "{}:\n{}", page.name, fence.text);
        }
    }
}

/// The examples share a queue: of two with one key, the second would make no task.
#[test]
fn every_example_submits_under_a_key_of_its_own() {
    let page = std::fs::read_to_string(root().join("examples/README.md")).expect("it can be read");
    let submitted = page.split(" sums ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let keys: Vec<&str> = submitted.filter(|word| word.starts_with("order-")).collect();
    let languages = page.lines().filter(|line| line.starts_with("| [")).count();
    assert_eq!((keys.len(), keys.iter().collect::<BTreeSet<_>>().len()), (languages, languages), "{keys:?}");
}

/// An unknown word behind a language would be a promise that no test keeps.
#[test]
fn every_word_behind_a_language_means_something() {
    for page in Page::all() {
        for fence in page.fences() {
            let words = fence.info.split_whitespace().skip(1);
            let known = |word: &str| {
                ["stays", "nodes-stopped"].contains(&word) && fence.is_typed() || fence.no_test().is_some()
            };
            assert!(words.clone().count() <= 1 && words.clone().all(known), "{}: {}", page.name, fence.info);
        }
    }
}

#[test]
fn a_page_with_commands_to_type_is_followed_by_a_scenario() {
    let scenarios = std::fs::read_to_string(root().join("integration-tests/tests/it/docs.rs")).expect("it can be read");
    // These pages are all tested, whatever they contain.
    let all_in_it = "docs/runbooks";
    assert!(scenarios.contains(&format!("Page::below({all_in_it:?})")), "the runbooks are followed");
    for page in Page::all().iter().filter(|page| !page.name.starts_with(all_in_it)) {
        let runs = page.fences().iter().any(Fence::is_typed);
        let followed = scenarios.contains(&format!("({:?}", page.name));
        assert_eq!(runs, followed, "{}: all commands are run, and a page without any needs no scenario", page.name);
    }
}
