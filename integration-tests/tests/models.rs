//! Models of Duetime's protocols, explored exhaustively within small bounds.
//!
//! Each invariant has the number of its guarantee in ARCHITECTURE.md. Each model also runs without each of its guards,
//! and must then find a counterexample: an invariant that nothing can break proves nothing. `--nocapture` prints the
//! number of states and the counterexamples.

#[path = "models/claim.rs"]
mod claim;
#[path = "models/cut.rs"]
mod cut;
#[path = "models/depend.rs"]
mod depend;
#[path = "models/fire.rs"]
mod fire;
#[path = "models/inbox.rs"]
mod inbox;
#[path = "models/lane.rs"]
mod lane;
#[path = "models/master.rs"]
mod master;
#[path = "models/place.rs"]
mod place;
#[path = "models/submit.rs"]
mod submit;

use integration_tests::models::search;
