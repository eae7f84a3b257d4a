//! Candidates, who stand for election once or again and again.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Election, Term, cooldown::Cooldown};
use crate::{
    engine::candidate_failed,
    lock::{Acquire, LockOptions},
    model::{Error, Result, Wait},
};

/// A candidate of an [`Election`], as a builder. Nothing happens before [`lead`](Self::lead) or
/// [`elect`](Self::elect) is polled.
#[must_use = "a candidate does nothing before `lead` or `elect`"]
#[derive(Clone)]
pub struct Candidate {
    election: Election,
    options: LockOptions,
    cooldown: Range<Duration>,
    on_failure: Option<OnFailure>,
}

/// Function that receives each failure of a candidate, and the pause after it.
type OnFailure = Arc<dyn Fn(&dyn fmt::Display, Duration) + Send + Sync>;

/// Treatment of the work of a leader that has lost its term.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterLoss {
    /// The work is dropped at its next await point.
    Drop,
    /// The work continues until it ends by itself.
    Await,
}

/// Next step of a leader whose work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Resigns, and stands for election again after the shortest pause of the
    /// [cooldown](Candidate::cooldown), so that a waiting candidate leads next.
    Resign,
    /// Resigns, and ends [`Candidate::lead`].
    Done,
}

/// Default pauses after a failure.
const DEFAULT_COOLDOWN: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(30);

impl Candidate {
    pub(super) fn new(election: Election) -> Self {
        let options = election.options();
        Self { election, options, cooldown: DEFAULT_COOLDOWN, on_failure: None }
    }

    /// Sets the text that says who stands and who leads, such as the address at which the other
    /// programs reach the leader. 1 to 200 bytes without control characters. Default: user, host,
    /// process id and program. See [`LockOptions::label`].
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.options = self.options.label(label);
        self
    }

    /// Sets the class of the election in metrics and events. Default: none. See
    /// [`LockOptions::class`].
    pub fn class(mut self, class: impl Into<Arc<str>>) -> Self {
        self.options = self.options.class(class);
        self
    }

    /// Sets the maximum time that the candidate waits for one term, from the first poll of
    /// [`elect`](Self::elect), or from the beginning of each campaign of [`lead`](Self::lead).
    /// Default: [`Wait::Forever`]. See [`LockOptions::wait`].
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options = self.options.wait(wait);
        self
    }

    /// Sets the time between the end of a term and the earliest election of another candidate, for
    /// work that needs time to stop. It applies if the leader cannot reach the store. At most half
    /// of the ttl. Default: none. See [`LockOptions::margin`].
    pub fn margin(mut self, margin: Duration) -> Self {
        self.options = self.options.margin(margin);
        self
    }

    /// Sets the shortest and the longest pause of [`lead`](Self::lead) after a failure of the work
    /// or of a campaign. Each failure in a row doubles the pause, with jitter. A term that lasts
    /// for the longest pause, or whose work succeeds, resets it. Default: 1 s to 30 s.
    pub fn cooldown(mut self, range: Range<Duration>) -> Self {
        self.cooldown = range;
        self
    }

    /// Sets a function that receives each failure of [`lead`](Self::lead) after which the candidate
    /// stands again, and the pause before that. Default: the failure is an event of `tracing`, if
    /// that feature is enabled.
    pub fn on_failure(
        mut self,
        report: impl Fn(&dyn fmt::Display, Duration) + Send + Sync + 'static,
    ) -> Self {
        self.on_failure = Some(Arc::new(report));
        self
    }

    /// Waits for one term.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock):
    /// [`Error::Timeout`] if the [wait limit](Self::wait) passes first, and the store's errors.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate. No claim stays in the store.
    pub async fn elect(self) -> Result<Term> {
        self.campaign().await
    }

    /// Leads whenever it is elected, until the work is done.
    ///
    /// In each term `work` runs with the [`Term`]. The claim of the term is released after the
    /// future of `work` has ended or was dropped, never earlier. If the term is lost first, the
    /// store may admit the next leader when the [margin](Self::margin) is over.
    ///
    /// | the work | then |
    /// |---|---|
    /// | returns [`Next::Done`] | the leader resigns, and the call returns |
    /// | returns [`Next::Resign`] | the leader resigns, and stands again after the shortest pause of the [cooldown](Self::cooldown) |
    /// | returns an error | the leader resigns, and stands again after a pause that doubles with each failure in a row. [`on_failure`](Self::on_failure) receives the error |
    /// | panics | the leader resigns in the background, and the panic continues |
    /// | still runs when the term is lost | the work is dropped at its next await point, and the candidate stands again at once, at the end of the queue |
    ///
    /// During a pause the candidate is not in the queue. If the store is unreachable, the candidate
    /// stands again after such a pause, too.
    ///
    /// A future that is spawned as a task needs a closure that owns what it captures:
    /// `async move |term: &Term| …`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use dlock_core::{Locks, Next, Term};
    /// use std::time::Duration;
    /// # async fn serve(_: &Term) -> Result<Next, std::io::Error> { Ok(Next::Done) }
    /// let s = Duration::from_secs;
    /// let election = Locks::memory().election("scheduler");
    /// let candidate = election.candidate().label("10.0.0.7:9000");
    /// let candidate = candidate.margin(s(10)).cooldown(s(1)..s(30));
    /// candidate.lead(async |term: &Term| serve(term).await).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Timeout`] if the [wait limit](Self::wait) of a campaign passed.
    /// - [`Error::Lost`] if the term was lost before the work returned [`Next::Done`], and only the
    ///   resignation has revealed it.
    /// - Errors that another attempt would repeat, such as [`Error::Refused`],
    ///   [`Error::WrongKind`], [`Error::InvalidOptions`] and [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and then resigns or withdraws the candidate.
    pub async fn lead<E: fmt::Display>(self, work: impl AsyncFnMut(&Term) -> Result<Next, E>) -> Result<()> {
        self.lead_with(work, AfterLoss::Drop).await
    }

    /// Leads as [`lead`](Self::lead) does, for work that needs time to stop, such as a process. The
    /// work is not dropped when its term is lost. It must watch [`Term::lost`](crate::Guard::lost),
    /// and then end as soon as it can, within the [margin](Self::margin), because another candidate
    /// may lead after that. The candidate stands again when the work has ended. After a loss the result of the work counts only if it
    /// is [`Next::Done`].
    ///
    /// # Errors
    /// As [`lead`](Self::lead).
    ///
    /// # Cancel safety
    /// As [`lead`](Self::lead).
    pub async fn lead_until_stopped<E: fmt::Display>(
        self,
        work: impl AsyncFnMut(&Term) -> Result<Next, E>,
    ) -> Result<()> {
        self.lead_with(work, AfterLoss::Await).await
    }

    async fn lead_with<E: fmt::Display>(
        self,
        mut work: impl AsyncFnMut(&Term) -> Result<Next, E>,
        after_loss: AfterLoss,
    ) -> Result<()> {
        let mut cooldown = Cooldown::new(self.cooldown.clone())?;
        loop {
            let term = match self.campaign().await {
                Ok(term) => term,
                Err(error) if error.is_transient() && !matches!(error, Error::Timeout { .. }) => {
                    let pause = cooldown.after_failure();
                    self.report(&error, pause);
                    self.sleep(pause).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let elected_at = Instant::now();
            // The future of the work ends with this statement, before the term.
            let result = tokio::select! {
                biased;
                _ = term.lost(), if after_loss == AfterLoss::Drop => None,
                result = work(&term) => Some(result),
            };
            let is_lost = after_loss == AfterLoss::Await && !term.is_current();
            let result = result.filter(|result| !is_lost || matches!(result, Ok(Next::Done)));
            cooldown.note_term(elected_at.elapsed(), matches!(result, Some(Ok(_))));
            match result {
                None => drop(term),
                Some(Ok(Next::Done)) => return finish(term).await,
                Some(Ok(Next::Resign)) => {
                    resign(term).await;
                    self.sleep(cooldown.shortest()).await?;
                }
                Some(Err(error)) => {
                    let pause = cooldown.after_failure();
                    self.report(&error, pause);
                    drop(error);
                    resign(term).await;
                    self.sleep(pause).await?;
                }
            }
        }
    }

    /// Waits for one term, which is one campaign. The future borrows nothing, because the compiler
    /// could not tell that [`lead`](Self::lead) is `Send` if it did.
    fn campaign(&self) -> impl Future<Output = Result<Term>> + Send + use<> {
        let (target, options) = (self.election.target.clone(), self.options.clone());
        async move {
            let guard = Acquire::new(target.clone(), options).await?;
            Ok(Term::new(guard, &target.locks))
        }
    }

    /// Reports an error of the work or of a campaign.
    fn report(&self, error: &dyn fmt::Display, pause: Duration) {
        let target = &self.election.target;
        candidate_failed(&target.name, target.locks.info(), pause, error);
        if let Some(report) = &self.on_failure {
            report(error, pause);
        }
    }

    fn sleep(&self, pause: Duration) -> impl Future<Output = Result<()>> + Send + use<> {
        let locks = self.election.target.locks.clone();
        let sleeping = async move {
            sleep(pause).await;
            Ok(())
        };
        async move { locks.on_thread(sleeping).await }
    }
}

/// Resigns. Ignores errors, because the keeper continues, and the candidate stands again anyway.
async fn resign(term: Term) {
    term.resign().await.ok();
}

/// Resigns after the work is done. Ignores errors other than a loss, because the keeper continues.
async fn finish(term: Term) -> Result<()> {
    match term.resign().await {
        Err(lost @ Error::Lost { .. }) => Err(lost),
        _ => Ok(()),
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { election, options, cooldown, .. } = self;
        f.debug_struct("Candidate")
            .field("election", election)
            .field("options", options)
            .field("cooldown", cooldown)
            .finish_non_exhaustive()
    }
}
