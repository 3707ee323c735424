//! `[auth.oidc]`: valid and refused sections.

use common::access::Role;
use secrecy::ExposeSecret;

use super::{SMALLEST, complaints, file_with, read};

const FINE: &str = r#"
[auth.oidc]
issuer = "https://sso.example/realms/main"
client_id = "duetime"
client_secret = "0123456789abcdef01234567"
redirect_url = "https://tasks.example/console/sign-in/oidc/callback"
[[auth.oidc.role]]
value = "ops"
role = "operator"
[[auth.oidc.role]]
value = "shop"
role = "producer"
queues = ["shop.*"]
"#;

#[test]
fn the_provider_alone_lets_a_node_listen_to_others_and_its_secret_may_be_in_a_file() {
    let secret = file_with("0123456789abcdef01234567\n");
    let toml = FINE
        .replace("client_secret = \"0123456789abcdef01234567\"", &format!("client_secret_file = {:?}", secret.path()));
    let config = read(&format!("{SMALLEST}{toml}[http]\nlisten = '0.0.0.0:80'"), &[]).expect("accepted");
    let shown = format!("{config:?} {}", config.redacted());
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
    let oidc = config.auth.oidc.expect("a provider");
    assert_eq!(oidc.client_secret.expose_secret(), "0123456789abcdef01234567");
    assert_eq!(oidc.scopes, ["openid", "profile", "email"]);
    assert_eq!(oidc.grants.claim, "groups");
    assert!(oidc.is_secure());
}

#[test]
fn the_environment_says_it_as_well() {
    let file = file_with("another secret of the provider");
    let path = file.path().display().to_string();
    let environment = [
        ("DUETIME_AUTH__OIDC__ISSUER", "http://127.0.0.1:5556/dex"),
        ("DUETIME_AUTH__OIDC__CLIENT_ID", "duetime"),
        ("DUETIME_AUTH__OIDC__CLIENT_SECRET_FILE", &path),
        ("DUETIME_AUTH__OIDC__SCOPES", "openid, groups"),
        ("DUETIME_AUTH__OIDC__REDIRECT_URL", "http://localhost:8080/console/sign-in/oidc/callback"),
        ("DUETIME_AUTH__OIDC__ROLE__0__VALUE", "ops"),
        ("DUETIME_AUTH__OIDC__ROLE__0__ROLE", "viewer"),
        ("DUETIME_AUTH__OIDC__ROLE__0__QUEUES", "a, b.*"),
    ];
    let oidc = read(SMALLEST, &environment).expect("accepted").auth.oidc.expect("a provider");
    assert_eq!(oidc.client_secret.expose_secret(), "another secret of the provider");
    assert_eq!(oidc.scopes, ["openid", "groups"]);
    let grant = &oidc.grants.grants[0];
    assert_eq!((grant.role, grant.queues.to_string()), (Role::Viewer, "a, b.*".to_owned()));
    assert!(!oidc.is_secure());
}

#[test]
fn what_cannot_work_or_is_not_safe_is_refused_by_its_key() {
    let role = "[[auth.oidc.role]]\nvalue = \"ops\"\nrole = \"operator\"\n";
    for (old, new, key) in [
        ("https://sso.example/realms/main", "http://sso.example", "auth.oidc.issuer"),
        ("https://sso.example/realms/main", "https://me:pw@sso.example", "auth.oidc.issuer"),
        ("https://sso.example/realms/main", "https://sso.example?x=1", "auth.oidc.issuer"),
        ("https://sso.example/realms/main", "sso.example", "auth.oidc.issuer"),
        ("https://tasks.example/console", "http://tasks.example/console", "auth.oidc.redirect_url"),
        ("/console/sign-in/oidc/callback", "/callback", "auth.oidc.redirect_url"),
        ("/console/sign-in/oidc/callback", "/console/sign-in/oidc/callback?x=1", "auth.oidc.redirect_url"),
        ("\"duetime\"", "\"\"", "auth.oidc.client_id"),
        ("0123456789abcdef01234567", "0123456789abcdef0123456", "auth.oidc.client_secret"),
        ("client_id =", "scopes = [\"email\"]\nclient_id =", "auth.oidc.scopes"),
        ("client_id =", "roles_claim = \"\"\nclient_id =", "auth.oidc.roles_claim"),
        ("value = \"shop\"", "value = \"ops\"", "auth.oidc.role[1].value"),
        ("value = \"shop\"", "value = \" \"", "auth.oidc.role[1].value"),
        ("[\"shop.*\"]", "[\"*\"]", "auth.oidc.role[1].queues"),
        ("\"operator\"", "\"root\"", "auth.oidc.role[0].role"),
        ("\"operator\"", "\"submitter\"", "auth.oidc.role[0].role"),
        ("\"operator\"", "\"metrics\"", "auth.oidc.role[0].role"),
        (role, "", "auth.oidc.role"),
    ] {
        let toml = if key == "auth.oidc.role" {
            FINE.split_once(role).expect("there").0.to_owned()
        } else {
            FINE.replace(old, new)
        };
        let complaints = complaints(&format!("{SMALLEST}{toml}"), &[]);
        let about = complaints.iter().any(|complaint| complaint.starts_with(&format!("`{key}`")));
        assert!(complaints.len() == 1 && about, "{key}: {complaints:?}");
        assert!(!complaints[0].contains("0123456789"), "{complaints:?}");
    }
    let named = format!("{SMALLEST}[[auth.token]]\nname = 'oidc:ann'\nrole = 'viewer'\nsha256 = '{}'", "1".repeat(64));
    assert!(complaints(&named, &[])[0].starts_with("`auth.token[0].name`"));
    let narrowed = named.replace("oidc:ann", "scraper").replace("'viewer'", "'metrics'\nqueues = ['mail']");
    assert!(complaints(&narrowed, &[])[0].starts_with("`auth.token[0].queues`"));
}
