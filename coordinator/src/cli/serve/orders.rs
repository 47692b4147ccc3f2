//! An operator's orders about the models of a server.

use std::sync::Arc;

use brigade_line::admin::{Admin, Answer, Asked, ClusterStatus, ModelState, Question, Refused};
use tokio::sync::mpsc;

use super::folder::Folder;
use super::on_demand::Stable;
use super::pulled::Pulled;

/// The models of a server.
#[derive(Clone, Debug)]
pub struct Known {
    /// Those that are loaded on demand.
    pub stable: Arc<Stable>,
    /// Those of the folder among them.
    pub folder: Option<Arc<Folder>>,
    /// Those among them that requests have fetched.
    pub pulled: Option<Arc<Pulled>>,
    /// Those that are loaded with the server.
    pub always: Vec<ModelState>,
}

/// The handle for operators about the models.
pub fn answer(known: Known) -> Admin {
    let (admin, asked) = Admin::channel();
    tokio::spawn(run(asked, known));
    admin
}

async fn run(mut asked: mpsc::Receiver<Asked>, known: Known) {
    while let Some(Asked { question, reply }) = asked.recv().await {
        let known = known.clone();
        // One that waits for a model holds up no other.
        tokio::spawn(async move {
            // The client may have gone.
            let _ = reply.send(carry_out(question, known).await);
        });
    }
}

async fn carry_out(question: Question, known: Known) -> Result<Answer, Refused> {
    let Known { stable, folder, pulled, always } = known;
    match question {
        Question::Models => {
            let damaged = folder.map(|folder| folder.damaged()).unwrap_or_default();
            let fetching = pulled.map(|pulled| pulled.states()).unwrap_or_default();
            Ok(Answer::Models([always, stable.states(), fetching, damaged].concat()))
        }
        Question::Load { model } => {
            let slot = stable.find(&model)?;
            stable.load(&slot).await.map(Answer::Done)
        }
        Question::Unload { model } => {
            let slot = stable.find(&model)?;
            stable.unload(&slot).await.map(Answer::Done)
        }
        Question::Pin { model, stays } => {
            let slot = stable.find(&model)?;
            stable.pin(&slot, stays).map(Answer::Done)
        }
        question => {
            let nodes = stable.with_pool(|pool| pool.spares());
            match nodes.filter(|_| question == Question::Status) {
                Some(nodes) => {
                    Ok(Answer::Status(ClusterStatus { nodes, ..ClusterStatus::default() }))
                }
                None => Err(Refused(
                    "this order is about one line: name its model with --model NAME, once it is loaded"
                        .to_owned(),
                )),
            }
        }
    }
}
