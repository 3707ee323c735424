//! The search through the states of a model, and what it prints.

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model};

/// A model that can run without one of its guards.
pub trait Guarded: Model + Clone + Send + Sync + 'static {
    type Guard: Copy + Debug + 'static;
    const NAME: &'static str;
    /// Every guard, beside the invariant that its absence breaks: the number of that, or the whole name if an invariant
    /// before it has the same number.
    const GUARDS: &'static [(Self::Guard, &'static str)];
    fn without(guard: Option<Self::Guard>) -> Self;
}

/// Explores every state of the model with all its guards, and then without each of them.
pub fn explore<M>()
where
    M: Guarded,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let whole = M::without(None).checker().spawn_bfs().join();
    let broken: Vec<String> =
        whole.discoveries().into_iter().map(|(name, path)| format!("{name}: {:?}", path.into_actions())).collect();
    assert_eq!(broken, Vec::<String>::new(), "{}: a counterexample with all guards", M::NAME);
    report(&format!("{}: {} states, depth {}", M::NAME, whole.unique_state_count(), whole.max_depth()));
    for (guard, number) in M::GUARDS {
        let model = M::without(Some(*guard));
        let is_meant = |name: &str| name == *number || name.split(' ').next() == Some(*number);
        let invariant = model.properties().into_iter().find(|property| is_meant(property.name));
        let invariant = invariant.expect("the invariant has a number");
        let name = invariant.name;
        let search = model.clone().checker().finish_when(HasDiscoveries::AnyOf([name].into())).spawn_bfs().join();
        let found = search.discovery(name);
        let path = found.unwrap_or_else(|| panic!("{}: {name} holds without {guard:?}", M::NAME)).into_vec();
        let holds = |state: &M::State| (invariant.condition)(&model, state);
        let until = path.iter().take_while(|(state, _)| holds(state));
        let steps: Vec<String> = until.filter_map(|(_, action)| Some(format!("{:?}", action.as_ref()?))).collect();
        report(&format!("{} without {guard:?}: not {name}: {}", M::NAME, steps.join(" > ")));
    }
}

#[expect(clippy::print_stdout, reason = "the counts and the counterexamples are what a person runs a model for")]
fn report(line: &str) {
    println!("{line}");
}
