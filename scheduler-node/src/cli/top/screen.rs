//! The terminal while `top` draws on it: alternate screen, no echo, restored on every exit.

use std::{
    io::{self, Stdout, Write},
    time::Duration,
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    execute, queue,
    style::Print,
    terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen},
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often keys are polled; the reaction feels immediate.
const KEYS_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Screen {
    out: Stdout,
    terminate: Signal,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        terminal::enable_raw_mode()?;
        let mut screen = Self { out: io::stdout(), terminate };
        execute!(screen.out, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Overwrites the last picture line by line, so that nothing flickers.
    pub(super) fn draw(&mut self, text: &str) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        for (row, line) in (0..rows).zip(text.lines()) {
            let line: String = line.chars().take(columns.into()).collect();
            queue!(self.out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        let below = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
        if below < rows {
            queue!(self.out, MoveTo(0, below), Clear(ClearType::FromCursorDown))?;
        }
        self.out.flush()
    }

    /// Whether a key or a signal asks to quit within this time.
    pub(super) async fn ends_within(&mut self, time: Duration) -> io::Result<bool> {
        let deadline = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < deadline {
            while event::poll(Duration::ZERO)? {
                if is_end(&event::read()?) {
                    return Ok(true);
                }
            }
            tokio::select! {
                _ = self.terminate.recv() => return Ok(true),
                () = tokio::time::sleep(KEYS_EVERY) => {}
            }
        }
        Ok(false)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(self.out, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// q, Esc, or Ctrl-C, which raw mode passes on as a key.
fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn q_escape_and_control_c_end_it_and_nothing_else() {
        let key = |code, modifiers| is_end(&Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE) && key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE) && !is_end(&Event::FocusGained));
    }
}
