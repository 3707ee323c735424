//! A page of the documentation, as far as a machine can check it: its fences, links and anchors.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Marks a fence that no test can run; the reason stands behind it.
const NO_TEST: &str = "no-test=";

/// One page, with its path from the repository's root.
#[derive(Debug)]
pub struct Page {
    pub name: String,
    text: String,
}

/// A fenced block of code.
#[derive(Clone, Debug)]
pub struct Fence {
    /// Everything behind the opening backticks.
    pub info: String,
    pub text: String,
}

impl Fence {
    /// "" when there is none.
    pub fn language(&self) -> &str {
        self.info.split_whitespace().next().unwrap_or_default()
    }

    /// Whether the word stands behind the language.
    pub fn says(&self, word: &str) -> bool {
        self.info.split_whitespace().skip(1).any(|said| said == word)
    }

    /// Whether a test types it: true for commands without a reason against it.
    pub fn is_typed(&self) -> bool {
        matches!(self.language(), "sh" | "sql") && self.no_test().is_none()
    }

    /// Why no test runs a fence that could otherwise be run.
    pub fn no_test(&self) -> Option<&str> {
        self.info.split_whitespace().find_map(|word| word.strip_prefix(NO_TEST))
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Page {
    pub fn read(name: &str) -> Self {
        let text = fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name: name.to_owned(), text }
    }

    /// All pages for readers.
    pub fn all() -> Vec<Self> {
        let mut names: Vec<String> =
            ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "examples/README.md"].map(String::from).into();
        for folder in ["docs", "docs/runbooks", "migrations", "charts/duetime"] {
            names.extend(Self::below(folder));
        }
        names.iter().map(|name| Self::read(name)).collect()
    }

    /// The names of the pages in a folder, in order.
    pub fn below(folder: &str) -> Vec<String> {
        let entries = fs::read_dir(root().join(folder)).expect("the folder is there").flatten();
        let files = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let pages = files.filter(|name| name.ends_with(".md"));
        let mut names: Vec<String> = pages.map(|name| format!("{folder}/{name}")).collect();
        names.sort();
        names
    }

    pub fn fences(&self) -> Vec<Fence> {
        let mut found: Vec<Fence> = Vec::new();
        let mut open = false;
        for event in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    found.push(Fence { info: info.to_string(), text: String::new() });
                    open = true;
                }
                Event::Text(text) if open => found.last_mut().into_iter().for_each(|fence| fence.text.push_str(&text)),
                Event::End(TagEnd::CodeBlock) => open = false,
                _ => {}
            }
        }
        found
    }

    /// The targets of its links, as written.
    pub fn links(&self) -> Vec<String> {
        self.events()
            .filter_map(|event| match event {
                Event::Start(Tag::Link { dest_url, .. }) => Some(dest_url.to_string()),
                _ => None,
            })
            .collect()
    }

    /// The words in single backticks.
    pub fn words_of_code(&self) -> Vec<String> {
        self.events()
            .filter_map(|event| match event {
                Event::Code(text) => Some(text.to_string()),
                _ => None,
            })
            .collect()
    }

    /// The anchors of its headings, made as GitHub makes them.
    pub fn anchors(&self) -> BTreeSet<String> {
        let (mut anchors, mut heading) = (BTreeSet::new(), None);
        for event in self.events() {
            match (event, &mut heading) {
                (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
                (Event::Text(text) | Event::Code(text), Some(heading)) => heading.push_str(&text),
                (Event::End(TagEnd::Heading(_)), Some(text)) => {
                    anchors.insert(anchor(text));
                    heading = None;
                }
                _ => {}
            }
        }
        anchors
    }

    fn events(&self) -> Parser<'_> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES)
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Whether the output `said` matches what a page `shows`, line by line. `…` stands for anything within a line, and
/// alone on a line for any lines.
pub fn is_shown(shows: &str, said: &str) -> bool {
    lines_fit(&shows.trim_end().lines().collect::<Vec<_>>(), &said.trim_end().lines().collect::<Vec<_>>())
}

fn lines_fit(shows: &[&str], said: &[&str]) -> bool {
    match (shows, said) {
        ([], []) => true,
        (["…", more @ ..], _) if lines_fit(more, said) => true,
        (["…", ..], [_, rest @ ..]) => lines_fit(shows, rest),
        ([first, more @ ..], [line, rest @ ..]) => line_fits(first, line) && lines_fit(more, rest),
        _ => false,
    }
}

fn line_fits(shows: &str, said: &str) -> bool {
    let Some((start, rest)) = shows.split_once('…') else { return shows.trim_end() == said.trim_end() };
    let Some(said) = said.strip_prefix(start) else { return false };
    said.char_indices().map(|(at, _)| at).chain([said.len()]).any(|at| line_fits(rest, &said[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_links_words_and_anchors_are_found() {
        let text = "# A `b` page: more\n\n```sh no-test=why\nls\n```\n\n- [x](y.md#z)\n\n   ```json\n   {}\n   ```\n";
        let page = Page { name: "p".to_owned(), text: text.to_owned() };
        let fences = page.fences();
        assert_eq!((fences[0].language(), fences[0].no_test(), fences[0].text.as_str()), ("sh", Some("why"), "ls\n"));
        assert_eq!((fences[1].language(), fences[1].no_test(), fences[1].text.as_str()), ("json", None, "{}\n"));
        assert!(
            !fences[0].is_typed() && !fences[1].is_typed() && fences[0].says("no-test=why") && !fences[0].says("sh")
        );
        assert_eq!((page.links(), page.words_of_code()), (vec!["y.md#z".to_owned()], vec!["b".to_owned()]));
        assert_eq!(page.anchors(), BTreeSet::from(["a-b-page-more".to_owned()]));
    }

    #[test]
    fn what_is_shown_may_leave_things_out() {
        assert!(is_shown("a … c\n…\nz", "a bb c\n1\n2\nz\n"));
        assert!(is_shown("a\n…", "a"));
        assert!(is_shown("…", ""));
        for (shows, said) in [("a", "b"), ("a … c", "a b d"), ("a", "a\nb"), ("a\nb", "a"), ("…\nz", "z\ny")] {
            assert!(!is_shown(shows, said), "{shows:?} {said:?}");
        }
    }
}
