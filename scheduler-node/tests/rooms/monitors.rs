//! Monitors: types whose fields stand behind one lock. Each of their operations takes the lock once, so that no other
//! task comes between two halves of it.

use std::{collections::BTreeMap, fs};

use syn::{
    Expr, ExprMethodCall, ImplItem, Item,
    visit::{Visit, visit_expr_method_call},
};

use super::root;

const MONITORS: [&str; 7] = [
    "store/clock.rs",
    "store/history.rs",
    "store/trust.rs",
    "working_set/delay_rules.rs",
    "working_set/lanes.rs",
    "working_set/owned_shards.rs",
    "working_set/ready_queues.rs",
];

/// Operations in two halves: a file, its operation, and the reason why another task may come between them.
const HALVED: [(&str, &str, &str); 1] = [(
    "working_set/owned_shards.rs",
    "set_aside",
    "an offer in between is dropped, because the row is left alone by then",
)];

/// What one function does.
#[derive(Debug, Default)]
struct Calls {
    locks: usize,
    /// The functions of its own type that it calls.
    own: Vec<String>,
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let is_self = matches!(&*call.receiver, Expr::Path(path) if path.path.is_ident("self"));
        if call.method == "lock" {
            self.locks += 1;
        } else if is_self {
            self.own.push(call.method.to_string());
        }
        visit_expr_method_call(self, call);
    }
}

/// How often each operation of a type takes a lock, by itself and through others.
fn locks(text: &str) -> BTreeMap<String, usize> {
    let file = syn::parse_file(text).expect("Rust");
    let mut calls: BTreeMap<String, Calls> = BTreeMap::new();
    for item in &file.items {
        let Item::Impl(item) = item else { continue };
        for part in &item.items {
            let ImplItem::Fn(function) = part else { continue };
            // What has the state in its hands cannot lock it again.
            let mut found = Calls::default();
            found.visit_block(&function.block);
            let known = calls.entry(function.sig.ident.to_string()).or_default();
            if found.locks + found.own.len() > known.locks + known.own.len() {
                *known = found;
            }
        }
    }
    let of = |name: &String| locks_of(&calls, name, &mut Vec::new());
    calls.keys().map(|name| (name.clone(), of(name))).collect()
}

fn locks_of(calls: &BTreeMap<String, Calls>, name: &str, on_the_way: &mut Vec<String>) -> usize {
    let Some(call) = calls.get(name).filter(|_| !on_the_way.iter().any(|other| other == name)) else { return 0 };
    on_the_way.push(name.to_owned());
    let through: usize = call.own.iter().map(|own| locks_of(calls, own, on_the_way)).sum();
    on_the_way.pop();
    call.locks + through
}

#[test]
fn an_operation_of_a_monitor_takes_its_lock_once() {
    let mut taken = 0;
    for name in MONITORS {
        let text = fs::read_to_string(root().join("scheduler-node/src").join(name)).expect("it is there");
        for (operation, locks) in locks(&text) {
            let is_halved = HALVED.iter().any(|(file, halved, _)| (*file, *halved) == (name, operation.as_str()));
            assert_eq!(locks > 1, is_halved, "{name}: `{operation}` takes the lock {locks} times");
            taken += locks;
        }
    }
    assert!(taken > 40, "locks were found: {taken}");
}

#[test]
fn an_operation_in_two_halves_is_noticed() {
    let text = "impl Held { fn is(&self) -> bool { self.0.lock().is } fn end(&self) { if self.is() { self.0.lock().end() } } }";
    assert_eq!(locks(text)["end"], 2);
}
