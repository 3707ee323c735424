//! Output: tables and sheets for people, the API's own JSON for programs.

use comfy_table::{Table, presets};

pub(super) use super::output::printable;
use super::output::{Form, in_one_line, say};

/// A table: one line for each row, with the column names on top.
pub(super) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    plain(table)
}

/// One line for each field; absent fields are left out.
pub(super) fn sheet(fields: Vec<(&str, Option<String>)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in fields {
        if let Some(value) = value {
            table.add_row([name.to_owned(), printable(&value)]);
        }
    }
    plain(table)
}

fn plain(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A stream of JSON values: one document with the list under its name, or one value a line.
#[derive(Debug)]
pub(super) struct Listing {
    form: Form,
    any: bool,
}

impl Listing {
    pub(super) fn open(form: Form, name: &str) -> Self {
        if form == Form::Json {
            say(format_args!("{{{name:?}:["));
        }
        Self { form, any: false }
    }

    pub(super) fn add(&mut self, json: &str) {
        let comma = if self.any { "," } else { "" };
        self.any = true;
        match self.form {
            Form::Text => {}
            Form::Json => say(format_args!("{comma}{json}")),
            Form::Jsonl => say(in_one_line(json)),
        }
    }

    /// `rest`: the members after the list, from their comma on.
    pub(super) fn close(self, rest: &str) {
        if self.form == Form::Json {
            say(format_args!("]{rest}}}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_names() {
        let rows = vec![vec!["a".to_owned(), "first".to_owned()], vec!["longer".to_owned(), "b".to_owned()]];
        assert_eq!(table(&["NAME", "VALUE"], rows), "NAME    VALUE\na       first\nlonger  b");
    }

    #[test]
    fn a_sheet_leaves_out_what_is_not_there() {
        let fields = vec![("id", Some("7".to_owned())), ("result", None), ("state", Some("ready".to_owned()))];
        assert_eq!(sheet(fields), "id     7\nstate  ready");
    }
}
