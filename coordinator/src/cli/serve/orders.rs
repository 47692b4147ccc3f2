//! An operator's orders about the models of a server.

use std::sync::Arc;

use brigade_line::admin::{Admin, Answer, Asked, ClusterStatus, ModelState, Question, Refused};
use tokio::sync::mpsc;

use super::folder::Folder;
use super::on_demand::Stable;

/// The handle for operators about the models of `stable`, some of which are from `folder`. `always` are the models
/// that are loaded with the server.
pub fn answer(stable: Arc<Stable>, folder: Option<Arc<Folder>>, always: Vec<ModelState>) -> Admin {
    let (admin, asked) = Admin::channel();
    tokio::spawn(run(asked, stable, folder, always));
    admin
}

async fn run(
    mut asked: mpsc::Receiver<Asked>,
    stable: Arc<Stable>,
    folder: Option<Arc<Folder>>,
    always: Vec<ModelState>,
) {
    while let Some(Asked { question, reply }) = asked.recv().await {
        let (stable, folder, always) = (stable.clone(), folder.clone(), always.clone());
        // One that waits for a model holds up no other.
        tokio::spawn(async move {
            // The client may have gone.
            let _ = reply.send(carry_out(question, &stable, folder.as_deref(), always).await);
        });
    }
}

async fn carry_out(
    question: Question,
    stable: &Stable,
    folder: Option<&Folder>,
    always: Vec<ModelState>,
) -> Result<Answer, Refused> {
    match question {
        Question::Models => {
            let damaged = folder.map(Folder::damaged).unwrap_or_default();
            Ok(Answer::Models([always, stable.states(), damaged].concat()))
        }
        Question::Load { model } => stable.load(stable.find(&model)?).await.map(Answer::Done),
        Question::Unload { model } => stable.unload(stable.find(&model)?).await.map(Answer::Done),
        Question::Pin { model, stays } => stable.pin(stable.find(&model)?, stays).map(Answer::Done),
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
