//! The route on which an operator accepts the loss of commits.

use axum::Json;
use common::wire::AcceptedLoss;

use super::{PathPart, Scoped, extract::NoInput, refusal::Refusal};

pub(super) async fn accept(
    scoped: Scoped,
    PathPart(name): PathPart,
    _: NoInput,
) -> Result<Json<AcceptedLoss>, Refusal> {
    Ok(Json(scoped.desk.accept_loss(&name, &scoped.caller.name).await?))
}
