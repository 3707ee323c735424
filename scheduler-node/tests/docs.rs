//! Checks every command of `duetime` that the documentation shows with the program's own parser.

use clap::{Parser, error::ErrorKind};
use integration_tests::page::Page;
use scheduler_node::cli::Cli;

/// The value of a placeholder or a variable.
const SOME_ID: &str = "0199f3a0-0000-7000-8000-000000000005";
/// Shell words that begin another command, and those that end one.
const STARTERS: [&str; 10] = ["until", "while", "if", "!", "do", "then", "{", "(", "time", "exec"];
const ENDERS: [&str; 7] = ["|", "||", "&&", "&", ";", "}", ")"];

/// The calls of `duetime` in a piece of shell, word by word.
fn calls(shell: &str) -> Vec<Vec<String>> {
    let shell = shell.replace("\\\n", " ").replace("$(", " ; ").replace(")", " ; ");
    shell.lines().filter_map(shlex::split).flat_map(|words| calls_of_line(&words)).collect()
}

fn calls_of_line(words: &[String]) -> Vec<Vec<String>> {
    let mut calls: Vec<Vec<String>> = Vec::new();
    // Whether the next word is the name of a program, and whether it belongs to a call.
    let (mut begins, mut within) = (true, false);
    for word in words {
        let (word, ends) = word.strip_suffix(';').map_or((word.as_str(), false), |word| (word, true));
        if ENDERS.contains(&word) || word.starts_with(['>', '<']) || word.starts_with("2>") {
            (begins, within) = (!word.contains(['>', '<']), false);
        } else if begins && (STARTERS.contains(&word) || word.contains('=')) {
            // Another command is still to come.
        } else if begins {
            (begins, within) = (false, word == "duetime");
            if within {
                calls.push(vec![word.to_owned()]);
            }
        } else if within && !word.is_empty() {
            calls.last_mut().into_iter().for_each(|call| call.push(word.to_owned()));
        }
        if ends {
            (begins, within) = (true, false);
        }
    }
    calls
}

#[test]
fn every_command_in_a_fence_is_taken_by_the_parser() {
    let mut checked = 0;
    for page in Page::all() {
        for fence in page.fences().iter().filter(|fence| fence.language() == "sh") {
            for call in calls(&fence.text) {
                let call = call.iter().map(|word| if word == "ID" || word.starts_with('$') { SOME_ID } else { word });
                checked += 1;
                if let Err(error) = Cli::try_parse_from(call) {
                    assert!(!error.use_stderr(), "{}: {error} in\n{}", page.name, fence.text);
                }
            }
        }
    }
    assert!(checked > 80, "only {checked} were found");
}

/// A sentence may leave out arguments that a command needs, but may not add any that it does not have.
#[test]
fn every_command_named_in_a_sentence_is_taken_by_the_parser() {
    for page in Page::all() {
        for text in page.words_of_code().iter().filter(|text| text.starts_with("duetime ") && !text.contains('<')) {
            let words = shlex::split(text).unwrap_or_else(|| panic!("{}: {text}", page.name));
            let words = words.iter().map(|word| if word == "ID" { SOME_ID } else { word });
            if let Err(error) = Cli::try_parse_from(words) {
                let is_short = matches!(
                    error.kind(),
                    ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                );
                assert!(is_short || !error.use_stderr(), "{}: {error}", page.name);
            }
        }
    }
}

#[test]
fn calls_are_found_wherever_they_stand() {
    let found = calls(
        "A=1 duetime a x > f # duetime no\nuntil duetime b | grep duetime; do sleep 1; done\nID=$(duetime c 'd e' \\\n  f) && duetime g &\n",
    );
    assert_eq!(
        found,
        [vec!["duetime", "a", "x"], vec!["duetime", "b"], vec!["duetime", "c", "d e", "f"], vec!["duetime", "g"]]
    );
}
