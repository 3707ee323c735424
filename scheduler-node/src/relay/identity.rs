//! The user as which commands run, and the protection of the relay from them.

use std::{fs, io};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

const ACCOUNTS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// The first file descriptor after the standard three.
const FIRST_OTHER: i32 = 3;

/// A user of this machine, and a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Name and home, where this machine knows the user.
    pub account: Option<(String, String)>,
}

impl Identity {
    /// Finds a user by name or number, with the group `group`, or else the user's own.
    pub fn find(user: &str, group: Option<&str>) -> Result<Self, String> {
        let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"));
        let groups = if group.is_some() { read(GROUPS)? } else { String::new() };
        Self::find_in(&read(ACCOUNTS)?, &groups, user, group)
    }

    fn find_in(accounts: &str, groups: &str, user: &str, group: Option<&str>) -> Result<Self, String> {
        let account = entry(accounts, user);
        let number = |fields: &[&str], place: usize| fields.get(place).and_then(|field| field.parse().ok());
        let uid = match &account {
            Some(fields) => number(fields, 2),
            None => user.parse().ok(),
        };
        let gid = match (group, &account) {
            (Some(group), _) => entry(groups, group).map_or_else(|| group.parse().ok(), |fields| number(&fields, 2)),
            (None, Some(fields)) => number(fields, 3),
            (None, None) => None,
        };
        let account = account.and_then(|fields| Some(((*fields.first()?).to_owned(), (*fields.get(5)?).to_owned())));
        match (uid, gid) {
            (None, _) => Err(format!("there is no user `{user}` in {ACCOUNTS}")),
            (_, None) => Err("name a group too: the group of a user without an account is unknown".to_owned()),
            (Some(uid), Some(gid)) => Ok(Self { uid, gid, account }),
        }
    }
}

/// The fields of the line with the name or number `wanted`.
fn entry<'a>(lines: &'a str, key: &str) -> Option<Vec<&'a str>> {
    let mut entries = lines.lines().map(|line| line.split(':').collect::<Vec<_>>());
    entries.find(|fields| fields.first() == Some(&key) || fields.get(2) == Some(&key))
}

/// Closes this process to others of its user. From here on they cannot read its memory, environment or files,
/// and no command inherits a file that was open when the process began.
pub fn close_to_others() -> io::Result<()> {
    // This comes first: afterwards the list of the process's own files belongs to the system and is unreadable here.
    close_fds::set_fds_cloexec_threadsafe(FIRST_OTHER, &[]);
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\njobs:x:901:902:,,,:/srv/jobs:/bin/false\nbroken\n";
    const GROUP: &str = "root:x:0:\nmail:x:8:jobs\n";

    #[test]
    fn a_user_is_found_by_name_or_number_with_its_own_group_or_another() {
        let found = |user, group| Identity::find_in(PASSWD, GROUP, user, group);
        let account = Some(("jobs".to_owned(), "/srv/jobs".to_owned()));
        let jobs = Identity { uid: 901, gid: 902, account };
        assert_eq!(found("jobs", None), Ok(jobs.clone()));
        assert_eq!(found("901", None), Ok(jobs.clone()));
        assert_eq!(found("jobs", Some("mail")), Ok(Identity { gid: 8, ..jobs.clone() }));
        assert_eq!(found("jobs", Some("77")), Ok(Identity { gid: 77, ..jobs }));
        assert_eq!(found("1234", Some("mail")), Ok(Identity { uid: 1234, gid: 8, account: None }));
        for (user, group) in [("nobody-here", None), ("1234", None), ("jobs", Some("no-group")), ("broken", None)] {
            assert!(found(user, group).is_err(), "{user} {group:?}");
        }
    }
}
