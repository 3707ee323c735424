//! Reads the SQL of the node: each statement file, and each function of the migrations as its last definition left it.
//!
//! The parser is `sqlparser`, which reads PostgreSQL's SQL. It does not read PL/pgSQL, so the body of such a function
//! is split into its commands at the semicolons between tokens, and the SQL of each command is parsed by itself. A
//! command that contains a write and cannot be parsed fails the test.

use std::{collections::BTreeMap, fs, path::Path};

use sqlparser::{
    ast::{CreateFunction, CreateFunctionBody, Expr, Query, SetExpr, Statement, Value},
    dialect::PostgreSqlDialect,
    parser::Parser,
    tokenizer::{Token, Tokenizer, Whitespace},
};

use super::super::root;

/// Words that begin the SQL of a command in PL/pgSQL.
const SQL_BEGINS: [&str; 8] = ["WITH", "SELECT", "PERFORM", "INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"];

/// Words that change rows, wherever they stand.
const WRITES: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"];

/// A statement file, or a function.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// The comments that describe it, as one line.
    pub(crate) header: String,
    pub(crate) commands: Vec<Command>,
}

/// One statement, or one command of a function.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// What stands before the SQL: `IF FOUND THEN`, for example. A command without SQL has everything here.
    pub(crate) control: String,
    pub(crate) sql: Option<Query>,
}

/// All statement files and functions.
pub(crate) fn all() -> Vec<Source> {
    let mut sources: Vec<Source> = files("scheduler-node/src/store/queries")
        .map(|(name, text)| Source { header: comments(&text), commands: commands(&name, &text), name })
        .collect();
    let mut functions: BTreeMap<(String, String), Source> = BTreeMap::new();
    for (name, text) in files("migrations") {
        let mut rest = Vec::new();
        for (comment, statement) in described(&text) {
            let Some(function) = function(&name, &statement) else {
                rest.extend(commands(&name, &statement));
                continue;
            };
            let named = function.name.to_string();
            let arguments: Vec<String> =
                function.args.iter().flatten().map(|argument| argument.data_type.to_string()).collect();
            let source = functions.entry((named.clone(), arguments.join(", "))).or_insert_with(|| Source {
                name: named.clone(),
                header: String::new(),
                commands: Vec::new(),
            });
            let (language, body) = body(&function);
            source.header = format!("{} {comment} {}", source.header, comments(&body));
            source.commands = if language == "sql" { commands(&named, &body) } else { plpgsql(&named, &body) };
        }
        sources.push(Source { header: String::new(), commands: rest, name });
    }
    sources.extend(functions.into_values());
    sources
}

/// A source made of `text`, for tests of the check itself.
pub(crate) fn made_up(name: &str, text: &str) -> Source {
    Source { name: name.to_owned(), header: comments(text), commands: commands(name, text) }
}

fn files(folder: &str) -> impl Iterator<Item = (String, String)> {
    let mut paths: Vec<_> =
        fs::read_dir(root().join(folder)).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    let is = |path: &Path, wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
    paths.retain(|path| !is(path, "md") && !is(path, "sha256"));
    assert!(paths.iter().all(|path| path.is_file() && is(path, "sql")), "{folder} has statement files only");
    paths.sort();
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    paths.into_iter().map(move |path| (name(&path), fs::read_to_string(&path).expect("UTF-8")))
}

fn tokens(text: &str) -> Vec<Token> {
    Tokenizer::new(&PostgreSqlDialect {}, text).tokenize().unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn is_word(token: Option<&Token>, word: &str) -> bool {
    matches!(token, Some(Token::Word(found)) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// Every comment of a text, as one line.
fn comments(text: &str) -> String {
    let comment = |token| match token {
        Token::Whitespace(Whitespace::SingleLineComment { comment, .. }) => Some(comment),
        _ => None,
    };
    let words: Vec<String> = tokens(text).into_iter().filter_map(comment).collect();
    words.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The statements of a migration, each with the comments since the one before.
fn described(text: &str) -> Vec<(String, String)> {
    let (mut found, mut comment, mut statement) = (Vec::new(), String::new(), String::new());
    for token in tokens(text) {
        match token {
            Token::SemiColon => found.push((std::mem::take(&mut comment), std::mem::take(&mut statement))),
            Token::Whitespace(Whitespace::SingleLineComment { comment: text, .. }) => {
                comment.push_str(text.trim());
                comment.push(' ');
            }
            token => statement.push_str(&token.to_string()),
        }
    }
    if !statement.trim().is_empty() {
        found.push((comment, statement));
    }
    found
}

fn function(name: &str, statement: &str) -> Option<CreateFunction> {
    let words: Vec<&str> = statement.split_whitespace().collect();
    let is_function = words.first() == Some(&"CREATE") && words.iter().take(4).any(|word| *word == "FUNCTION");
    if !is_function {
        return None;
    }
    match Parser::parse_sql(&PostgreSqlDialect {}, statement)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .remove(0)
    {
        Statement::CreateFunction(function) => Some(function),
        other => panic!("{name}: {other} is no function"),
    }
}

fn body(function: &CreateFunction) -> (String, String) {
    let language = function.language.as_ref().map(|language| language.value.to_lowercase()).unwrap_or_default();
    let Some(CreateFunctionBody::AsBeforeOptions { body, .. } | CreateFunctionBody::AsAfterOptions(body)) =
        &function.function_body
    else {
        panic!("{} has a body", function.name);
    };
    match body {
        Expr::Value(value) => match &value.value {
            Value::DollarQuotedString(text) => (language, text.value.clone()),
            other => panic!("{}: {other}", function.name),
        },
        other => panic!("{}: {other}", function.name),
    }
}

/// The statements of a text in SQL, and those of its blocks without a name.
fn commands(name: &str, text: &str) -> Vec<Command> {
    let of = |tokens: Vec<Token>| match &tokens[..] {
        [first, Token::DollarQuotedString(body)] if is_word(Some(first), "DO") => plpgsql(name, &body.value),
        _ => vec![Command { control: String::new(), sql: parse(name, &tokens) }],
    };
    split(text).into_iter().flat_map(of).collect()
}

/// The commands of a body in PL/pgSQL. They end at a semicolon, and the first one of a loop begins after LOOP.
fn plpgsql(name: &str, text: &str) -> Vec<Command> {
    let mut commands = Vec::new();
    let parts = split(text);
    let parts = parts.iter().flat_map(|part| part.split(|token| is_word(Some(token), "LOOP")));
    for tokens in parts.filter(|part| !part.is_empty()) {
        let mut depth = 0;
        let begin = tokens.iter().position(|token| {
            match token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            depth == 0 && SQL_BEGINS.iter().any(|word| is_word(Some(token), word))
        });
        let (control, sql) = tokens.split_at(begin.unwrap_or(tokens.len()));
        assert!(!has_write(control), "{name}: a write in {}", joined(control));
        commands.push(Command { control: joined(control), sql: parse(name, &without_into(sql)) });
    }
    commands
}

/// The tokens between semicolons, without comments and blanks.
fn split(text: &str) -> Vec<Vec<Token>> {
    let tokens = tokens(text).into_iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect::<Vec<_>>();
    let parts = tokens.split(|token| *token == Token::SemiColon);
    parts.filter(|part| !part.is_empty()).map(readable).collect()
}

/// The parser knows FOR UPDATE and FOR SHARE only. FOR NO KEY UPDATE excludes every other writer as well, so it becomes
/// FOR UPDATE. FOR KEY SHARE does not hold a fence, so it becomes no lock at all. The parser does not know `(row).*`
/// either, which becomes `(row) AS all_of_it`.
fn readable(tokens: &[Token]) -> Vec<Token> {
    let mut kept: Vec<Token> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let word = |ahead: usize, word: &str| is_word(tokens.get(at + ahead), word);
        if word(0, "NO") && word(1, "KEY") && word(2, "UPDATE") {
            at += 2;
        } else if word(0, "FOR") && word(1, "KEY") && word(2, "SHARE") {
            at += 3;
            continue;
        } else if tokens[at..].starts_with(&[Token::Period, Token::Mul]) && kept.last() == Some(&Token::RParen) {
            kept.extend([Token::make_keyword("AS"), Token::make_word("all_of_it", None)]);
            at += 2;
            continue;
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// The variable after RETURNING … INTO, and PERFORM, are PL/pgSQL.
fn without_into(tokens: &[Token]) -> Vec<Token> {
    let mut kept = tokens.to_vec();
    let (mut depth, mut returning) = (0, false);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        returning |= depth == 0 && is_word(Some(token), "RETURNING");
        if returning && depth == 0 && is_word(Some(token), "INTO") {
            kept.truncate(at);
            break;
        }
    }
    if is_word(kept.first(), "PERFORM") {
        kept[0] = Token::make_keyword("SELECT");
    }
    kept
}

/// Whether the tokens write: FOR UPDATE only locks.
fn has_write(tokens: &[Token]) -> bool {
    tokens.iter().enumerate().any(|(at, token)| {
        let after_for = at.checked_sub(1).is_some_and(|before| is_word(tokens.get(before), "FOR"));
        !after_for && WRITES.iter().any(|word| is_word(Some(token), word))
    })
}

fn joined(tokens: &[Token]) -> String {
    tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Whether the tokens create such a thing: `CREATE OR REPLACE` is the longest beginning.
fn creates(tokens: &[Token], thing: &str) -> bool {
    is_word(tokens.first(), "CREATE") && tokens.iter().take(4).any(|token| is_word(Some(token), thing))
}

/// The statement of these tokens. One without a write may be in words that the parser does not know.
fn parse(name: &str, tokens: &[Token]) -> Option<Query> {
    let text = joined(tokens);
    // Their bodies are texts, which are not read here.
    let is_unread = ["DO", "CALL"].iter().any(|word| is_word(tokens.first(), word));
    let is_unread = is_unread || ["PROCEDURE", "RULE"].iter().any(|thing| creates(tokens, thing));
    assert!(!is_unread, "{name}: no test reads the writes in {text}");
    let parsed = Parser::parse_sql(&PostgreSqlDialect {}, &text).map(|mut statements| statements.pop());
    let query = parsed.as_ref().ok().and_then(Clone::clone).and_then(as_query);
    // The privileges that a GRANT names, and the events of a trigger, are called as writes are.
    let is_definition = ["GRANT", "REVOKE", "CREATE"].iter().any(|word| is_word(tokens.first(), word));
    assert!(query.is_some() || is_definition || !has_write(tokens), "{name}: {parsed:?} in {text}");
    query
}

/// A write as a query whose body it is: so the writes inside WITH and those outside are read in one way.
fn as_query(statement: Statement) -> Option<Query> {
    let body = match statement {
        Statement::Query(query) => return Some(*query),
        Statement::Insert(_) => SetExpr::Insert(statement),
        Statement::Update(_) => SetExpr::Update(statement),
        Statement::Delete(_) => SetExpr::Delete(statement),
        _ => return None,
    };
    let Some(Statement::Query(mut query)) = Parser::parse_sql(&PostgreSqlDialect {}, "SELECT 1").ok()?.pop() else {
        return None;
    };
    *query.body = body;
    Some(*query)
}
