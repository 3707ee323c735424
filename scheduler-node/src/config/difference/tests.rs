use super::*;
use crate::config::keys;

const BASE: &str = r#"
[[database]]
url = "postgres://db/tasks"
[amqp]
url = "amqp://mq"
"#;

const OPS: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const SHOP: &str = "2222222222222222222222222222222222222222222222222222222222222222";

fn read(toml: &str, environment: &[(&str, &str)]) -> Config {
    let mut complaints = crate::config::Complaints::default();
    let mut tree = Tree::of_text(std::path::Path::new("test.toml"), toml).expect("TOML");
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    tree.overlay(environment, &mut complaints);
    tree.complete(&mut complaints);
    Config::of_tree(tree, complaints).expect("accepted")
}

fn between(old: &str, new: &str) -> Difference {
    Difference::between(&read(old, &[]), &read(new, &[]))
}

fn token(name: &str, sha256: &str) -> String {
    format!("[[auth.token]]\nname = {name:?}\nrole = \"operator\"\nsha256 = {sha256:?}\n")
}

fn with(section: &str) -> String {
    format!("{BASE}\n{section}")
}

/// A file with two values of the key in turn; both differ from the default.
fn two_files(key: &Key) -> [String; 2] {
    let (section, name) = key.path.rsplit_once('.').expect("section and name");
    let head = match section.split_once("[]") {
        None => format!("[{section}]"),
        Some((list, "")) => format!("[[{list}]]"),
        Some((list, below)) => format!("[[{list}]]\n[{list}{below}]"),
    };
    let [one, other] = match key.default {
        "true" => ["true", "false"],
        "false" => ["false", "true"],
        number if number.parse::<f64>().is_ok() => ["7", "8"],
        _ => ["\"a\"", "\"b\""],
    };
    [one, other].map(|value| format!("{head}\n{name} = {value}\n"))
}

/// Reads without the checks, which know the meaning of each value.
fn values(toml: &str) -> Values {
    Values::of(&Tree::of_text(std::path::Path::new("test.toml"), toml).expect("TOML"))
}

fn difference_of_values(old: &str, new: &str) -> Difference {
    let (mut one, mut other) = (read(BASE, &[]), read(BASE, &[]));
    (one.values, other.values) = (values(old), values(new));
    Difference::between(&one, &other)
}

#[test]
fn every_key_that_changes_is_taken_over_or_named() {
    // The secret from such a file stands under the key itself. The name of a database says which section it is.
    let is_compared = |key: &&Key| {
        key.path != "database[].name"
            && key.path.strip_suffix("_file").is_none_or(|stem| !keys::SECRETS.contains(&stem))
    };
    for key in KEYS.iter().filter(is_compared) {
        let [one, other] = two_files(key);
        let difference = difference_of_values(&one, &other);
        let is_taken = difference.tokens || difference.delay_exchanges || difference.log;
        assert_eq!((is_taken, difference.restart.len()), (key.reloads, usize::from(!key.reloads)), "{}", key.path);
        assert!(difference_of_values(&one, &one).is_empty(), "{}", key.path);
    }
}

#[test]
fn what_is_written_differently_and_means_the_same_is_no_change() {
    assert!(between(BASE, &with("[scheduler]\nbatch = 500\n[telemetry]\nlog = 'info'\ntrace_ratio = 0.0")).is_empty());
    let by_variable =
        read(BASE, &[("DUETIME_SCHEDULER__BATCH", "250"), ("DUETIME_ETCD__ENDPOINTS", "http://a,http://b")]);
    let by_file = read(&with("[scheduler]\nbatch = 250\n[etcd]\nendpoints = ['http://a', 'http://b']"), &[]);
    assert!(Difference::between(&by_variable, &by_file).is_empty());
}

#[test]
fn tokens_exchanges_and_log_are_taken_over_and_the_rest_is_named_without_values() {
    let old = with(&format!("[scheduler]\nbatch = 100\n{}", token("ops", OPS)));
    let exchange = "[[delay_exchange]]\nname = 'late'\ndeliver_to = 'orders'\n";
    let more = format!("[scheduler]\nbatch = 200\n[telemetry]\nlog = 'debug'\n{exchange}{}", token("shop", SHOP));
    let (mut in_force, new) = (read(&old, &[]), read(&with(&more), &[]));
    let difference = Difference::between(&in_force, &new);
    assert!(difference.tokens && difference.delay_exchanges && difference.log);
    assert_eq!(difference.restart, ["scheduler.batch"]);
    in_force.take_over(&new, &difference);
    assert_eq!(in_force.auth.token.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["shop"]);
    assert_eq!((in_force.delay_exchanges.len(), in_force.telemetry.log.as_str()), (1, "debug"));
    assert_eq!(in_force.scheduler.batch, 100);
    let again = Difference::between(&in_force, &new);
    assert_eq!(again.restart, ["scheduler.batch"], "it is named until a restart");
    assert!(!again.tokens && !again.delay_exchanges && !again.log);
}

#[test]
fn a_new_database_joins_and_every_other_change_of_one_requires_a_restart() {
    let west = "[[database]]\nname = 'west'\nurl = 'postgres://west/tasks'\n";
    let (mut in_force, new) = (read(BASE, &[]), read(&with(west), &[]));
    let difference = Difference::between(&in_force, &new);
    assert_eq!(difference.added_databases.iter().map(|added| added.name.as_str()).collect::<Vec<_>>(), ["west"]);
    assert!(difference.restart.is_empty());
    in_force.take_over(&new, &difference);
    assert_eq!(Difference::between(&in_force, &new).added_databases.len(), 1, "it has not joined yet");
    in_force.add_database(&new, &DatabaseName::new("west"));
    assert!(Difference::between(&in_force, &new).is_empty());
    for (written, named) in [
        (with(""), vec!["database.west"]),
        (with(&west.replace("//west", "//other")), vec!["database.west.url"]),
        (with(&format!("{west}max_connections = 8")), vec!["database.west.max_connections"]),
        (
            format!("{west}{BASE}").replacen("[[database]]\nurl", "[[database]]\nname = 'main'\nurl", 1),
            vec!["database[0]"],
        ),
    ] {
        // Only the first migration gives shards by the order of the sections.
        let difference = Difference::between(&in_force, &read(&written, &[]));
        assert_eq!(difference.restart, named, "{written}");
        assert!(difference.added_databases.is_empty());
    }
}

#[test]
fn a_database_that_cannot_join_by_itself_requires_a_restart() {
    let in_force = read(BASE, &[]);
    let renamed = BASE.replace("url = \"postgres", "name = 'other'\nurl = \"postgres");
    let difference = Difference::between(&in_force, &read(&renamed, &[]));
    assert_eq!(difference.restart, ["database.main", "database[0]", "database.other"], "it has the url of another one");
    let ranged = with("[[database]]\nname = 'west'\nurl = 'postgres://west/tasks'\nshards = '128-255'\n")
        .replace("db/tasks\"", "db/tasks\"\nshards = \"0-127\"");
    let difference = Difference::between(&in_force, &read(&ranged, &[]));
    assert_eq!(difference.restart, ["database.main.shards", "database.west"], "it begins with shards");
    let by_variable = read(
        &with("[[database]]\nname = 'west'\nurl = 'postgres://west/tasks'\n"),
        &[("DUETIME_DATABASE__1__URL", "postgres://west/tasks")],
    );
    assert_eq!(Difference::between(&in_force, &by_variable).restart, ["database.west"]);
}

#[test]
fn a_variable_never_gives_the_secret_of_one_token_to_another() {
    let variable = [("DUETIME_AUTH__TOKEN__0__SHA256", OPS)];
    let old = read(&with(&token("metrics", SHOP)), &variable);
    let before = read(&with(&format!("{}{}", token("boss", SHOP), token("metrics", SHOP))), &variable);
    let difference = Difference::between(&old, &before);
    assert!(!difference.tokens);
    assert_eq!(difference.restart, ["auth.token"]);
    let behind = read(&with(&format!("{}{}", token("metrics", SHOP), token("boss", SHOP))), &variable);
    assert!(Difference::between(&old, &behind).tokens, "its section kept its number");
}

#[test]
fn the_same_text_is_the_same_and_a_comment_changes_nothing() {
    let one = read(BASE, &[]);
    assert!(one.is_same_as(&read(&format!("# a comment\n{BASE}"), &[])));
    assert!(!one.is_same_as(&read(&with("[queues]\nmax = 3000"), &[])));
}
