//! A text's rows as one vector. Rows come in the order of their positions, so that the sum is the same for any cut.

use brigade_dialect::pooling::Pooling;

use crate::handle::{Failure, SeqEvent, Sequence};

/// One vector of a text's rows.
///
/// # Errors
/// The line fails, or gives something else than rows.
pub async fn pool(mut sequence: Sequence, pooling: Pooling) -> Result<Vec<f32>, Failure> {
    let (mut sums, mut kept, mut n): (Vec<f64>, Vec<f32>, usize) = (Vec::new(), Vec::new(), 0);
    loop {
        match sequence.next().await {
            Some(SeqEvent::Logits { pos, row }) => {
                n += 1;
                match pooling {
                    Pooling::Mean => {
                        sums.resize(row.len(), 0.0);
                        sums.iter_mut().zip(&row).for_each(|(sum, v)| *sum += f64::from(*v));
                    }
                    Pooling::First if pos > 0 => {}
                    Pooling::First | Pooling::Last => kept = row,
                }
            }
            Some(SeqEvent::Finished(_)) | None => break,
            Some(SeqEvent::Failed(failure)) => return Err(failure),
            Some(SeqEvent::Token(_)) => {
                let reason = "a text's rows came as tokens".to_string();
                return Err(Failure::Internal { reason });
            }
        }
    }
    Ok(match pooling {
        Pooling::Mean => sums.into_iter().map(|sum| (sum / n.max(1) as f64) as f32).collect(),
        Pooling::First | Pooling::Last => kept,
    })
}

/// Makes a vector 1 long; one of zeros stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}
