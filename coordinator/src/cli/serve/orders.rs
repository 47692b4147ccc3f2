//! An operator's orders about the models of a server.

use std::sync::Arc;

use brigade_line::admin::{Admin, Answer, Asked, ClusterStatus, ModelState, Question, Refused};
use tokio::sync::mpsc;

use super::on_demand::Stable;

/// Who answers for the models of `stable`; `always` are those that are loaded with the server.
pub fn answer(stable: Arc<Stable>, always: Vec<ModelState>) -> Admin {
    let (admin, asked) = Admin::channel();
    tokio::spawn(run(asked, stable, always));
    admin
}

async fn run(mut asked: mpsc::Receiver<Asked>, stable: Arc<Stable>, always: Vec<ModelState>) {
    while let Some(Asked { question, reply }) = asked.recv().await {
        let (stable, always) = (stable.clone(), always.clone());
        // One that waits for a model holds up no other.
        tokio::spawn(async move {
            // Whoever asked may have gone.
            let _ = reply.send(carry_out(question, &stable, always).await);
        });
    }
}

async fn carry_out(
    question: Question,
    stable: &Stable,
    always: Vec<ModelState>,
) -> Result<Answer, Refused> {
    match question {
        Question::Models => Ok(Answer::Models([always, stable.states()].concat())),
        Question::Load { model } => stable.load(stable.find(&model)?).await.map(Answer::Done),
        Question::Unload { model } => stable.unload(stable.find(&model)?).await.map(Answer::Done),
        Question::Pin { model, stays } => stable.pin(stable.find(&model)?, stays).map(Answer::Done),
        Question::Status if stable.pool().is_some() => {
            let nodes = stable.pool().map(|pool| pool.spares()).unwrap_or_default();
            Ok(Answer::Status(ClusterStatus { nodes, ..ClusterStatus::default() }))
        }
        _ => Err(Refused(
            "this is about one line: say which with --model NAME, once it is loaded".to_owned(),
        )),
    }
}
