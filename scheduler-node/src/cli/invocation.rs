//! The arguments that all commands for a running node share.

use clap::Args;

use super::{
    access::Access,
    client::{Client, Response},
    error::Error,
    output::{Form, Output, in_one_line, say},
};

/// One call of a command: its own arguments, the nodes it goes to, and the form of its output.
#[derive(Debug, Args)]
pub struct Invocation<A: Args> {
    #[command(flatten)]
    pub(super) args: A,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    output: Output,
}

impl<A: Args> Invocation<A> {
    pub(super) fn client(&self) -> Result<Client, Error> {
        self.access.client()
    }

    pub(super) fn form(&self) -> Form {
        self.output.output
    }

    /// Prints an answer: unchanged as JSON, or rendered by `text` for a person.
    pub(super) fn print(
        &self,
        response: &Response,
        text: impl FnOnce(&Response) -> Result<String, Error>,
    ) -> Result<(), Error> {
        match self.form() {
            Form::Text => say(text(response)?),
            Form::Json => say(&response.text),
            Form::Jsonl => say(in_one_line(&response.text)),
        }
        Ok(())
    }
}
