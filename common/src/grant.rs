//! Roles by the claims of an identity provider: the claim to read, and what each of its values permits here.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::access::{Role, Scope};

/// The most grants in a configuration. One group with a value for it covers any number of people.
pub const MAX_GRANTS: usize = 100;

/// The role and the queues that one value of the claim gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub value: String,
    pub role: Role,
    pub queues: Scope,
}

/// All grants, and the claim that holds their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// The name of a claim, or a path through objects with dots, as `realm_access.roles`. Names may have dots too.
    pub claim: String,
    pub grants: Vec<Grant>,
}

impl Grants {
    /// The indexes of the grants that `claims` hold: those of the strongest role among them. A weaker role adds
    /// nothing, not even queues, because a caller's role applies to all of the caller's queues. Grants have the roles
    /// of [`Role::CONSOLE`], so of any two roles one has all permissions of the other.
    pub fn held(&self, claims: &Value) -> Vec<usize> {
        let values = self.values(claims).unwrap_or_default();
        let held = |grant: &&Grant| values.contains(&grant.value.as_str());
        let Some(strongest) =
            self.grants.iter().filter(held).map(|grant| grant.role).max_by_key(|role| role.strength())
        else {
            return Vec::new();
        };
        let places = self.grants.iter().enumerate().filter(|(_, grant)| grant.role == strongest && held(grant));
        places.map(|(place, _)| place).collect()
    }

    /// The role and the queues that the grants at these indexes give together. `None` when there are none, or when an
    /// index does not exist.
    pub fn worth(&self, held: &[usize]) -> Option<(Role, Scope)> {
        let grants = held.iter().map(|place| self.grants.get(*place)).collect::<Option<Vec<_>>>()?;
        let role = grants.iter().map(|grant| grant.role).min_by_key(|role| role.strength())?;
        Some((role, Scope::joined(grants.into_iter().map(|grant| &grant.queues))))
    }

    /// A hash of everything that decides what an index in these grants gives.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut put = |text: &str| {
            // The length comes first, so that no two different lists hash the same bytes.
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        };
        put(&self.claim);
        for grant in &self.grants {
            put(&grant.value);
            put(grant.role.text());
            put(&grant.queues.patterns().map_or_else(String::new, |patterns| patterns.join(" ")));
        }
        hash.finalize().into()
    }

    /// The claim's values: a list of texts, or one text. `None`: the claim is missing, or is neither.
    pub fn values<'a>(&self, claims: &'a Value) -> Option<Vec<&'a str>> {
        match member(claims, &self.claim)? {
            Value::String(value) => Some(vec![value]),
            Value::Array(values) => Some(values.iter().filter_map(Value::as_str).collect()),
            _ => None,
        }
    }
}

/// The member of `object` at `path`, whose dots part names or belong to one; longer names come first. The names on the
/// way to a member spell one beginning of the path, so each is met once, whatever the object holds.
fn member<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    object.get(path).or_else(|| {
        let mut dots = path.rmatch_indices('.');
        dots.find_map(|(dot, _)| member(object.get(&path[..dot])?, &path[dot + 1..]))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn grant(value: &str, role: Role, queues: Option<&[&str]>) -> Grant {
        let queues = queues.map(|queues| queues.iter().map(ToString::to_string).collect());
        Grant { value: value.to_owned(), role, queues: Scope::of(queues).expect("a scope") }
    }

    fn grants(claim: &str) -> Grants {
        let grants = vec![
            grant("all", Role::Viewer, None),
            grant("staff", Role::Observer, None),
            grant("shop", Role::Producer, Some(&["shop.*"])),
            grant("mail", Role::Producer, Some(&["mail", "shop.*"])),
            grant("ops", Role::Operator, None),
        ];
        Grants { claim: claim.to_owned(), grants }
    }

    /// The role and the queues, as text.
    fn worth(claim: &str, claims: &Value) -> Option<String> {
        let grants = grants(claim);
        let (role, queues) = grants.worth(&grants.held(claims))?;
        Some(format!("{role}: {queues}"))
    }

    #[test]
    fn the_highest_role_counts_with_the_queues_of_all_its_grants() {
        for (values, expected) in [
            (json!(["all"]), Some("viewer: all")),
            (json!("all"), Some("viewer: all")),
            (json!(["all", "shop"]), Some("producer: shop.*")),
            (json!(["staff"]), Some("observer: all")),
            (json!(["staff", "all"]), Some("viewer: all")),
            (json!(["staff", "shop"]), Some("producer: shop.*")),
            (json!(["mail", "shop", "shop"]), Some("producer: shop.*, mail")),
            (json!(["shop", "ops", "other"]), Some("operator: all")),
            (json!(["other"]), None),
            (json!(["ALL", "al", "all "]), None),
            (json!([]), None),
            (json!([["all"], 1, null]), None),
            (json!({ "all": true }), None),
            (json!(null), None),
        ] {
            assert_eq!(worth("groups", &json!({ "groups": values })).as_deref(), expected, "{values}");
        }
        assert_eq!(worth("groups", &json!({})), None);
    }

    #[test]
    fn a_claim_is_found_by_its_name_and_then_by_its_path() {
        let nested = json!({ "realm_access": { "roles": ["ops"] } });
        assert_eq!(worth("realm_access.roles", &nested).as_deref(), Some("operator: all"));
        let named = json!({ "https://a.example/roles": ["all"] });
        assert_eq!(worth("https://a.example/roles", &named).as_deref(), Some("viewer: all"));
        assert_eq!(worth("realm_access.groups", &nested), None);
    }

    #[test]
    fn names_on_a_path_may_have_dots() {
        let shop = json!({ "live": { "roles": ["ops"], "groups": ["staff"] } });
        let nested = json!({ "access": { "shop": shop, "shop.live": { "roles": ["all"] } } });
        for (claim, expected) in [
            ("access.shop.live.roles", Some("viewer: all")),
            ("access.shop.live.groups", Some("observer: all")),
            ("access.shop.live", None),
            ("access.shop.live.roles.all", None),
            ("access..roles", None),
        ] {
            assert_eq!(worth(claim, &nested).as_deref(), expected, "{claim}");
        }
    }

    #[test]
    fn places_that_are_none_are_worth_nothing() {
        assert_eq!(grants("groups").worth(&[]), None);
        assert_eq!(grants("groups").worth(&[0, 5]), None);
    }

    #[test]
    fn the_fingerprint_tells_every_change() {
        let all = grants("groups");
        let mut others = vec![grants("roles")];
        for change in [
            |grants: &mut Grants| grants.grants.swap(0, 1),
            |grants: &mut Grants| grants.grants[0].role = Role::Operator,
            |grants: &mut Grants| grants.grants[2].queues = Scope::ALL,
            |grants: &mut Grants| drop(grants.grants.pop()),
            |grants: &mut Grants| grants.grants[0].value.push('x'),
        ] {
            let mut other = grants("groups");
            change(&mut other);
            others.push(other);
        }
        for other in others {
            assert_ne!(other.fingerprint(), all.fingerprint(), "{other:?}");
        }
    }
}
