//! Whole lines with their PE in front, from output that arrives in pieces.

/// A line longer than this is cut, so that output without line breaks takes bounded memory.
const LONGEST: usize = 1 << 20;

/// One output of one PE.
#[derive(Debug)]
pub struct Lines {
    prefix: Vec<u8>,
    /// The line that has begun.
    begun: Vec<u8>,
}

impl Lines {
    /// Output of PE `pe`.
    pub fn of(pe: usize) -> Self {
        Self { prefix: format!("[PE {pe}] ").into_bytes(), begun: Vec::new() }
    }

    /// Takes the next `bytes` and appends the lines that they complete to `text`.
    pub fn push(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for mut piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            while self.begun.len() + piece.len() > LONGEST {
                let (head, tail) = piece.split_at(LONGEST - self.begun.len());
                self.begun.extend_from_slice(head);
                self.finish(text);
                piece = tail;
            }
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.finish(text);
            }
        }
    }

    /// The line that has begun as if it had ended.
    pub fn finish(&mut self, text: &mut Vec<u8>) {
        if self.begun.is_empty() {
            return;
        }
        text.extend_from_slice(&self.prefix);
        text.extend_from_slice(&self.begun);
        if !self.begun.ends_with(b"\n") {
            text.push(b'\n');
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixed(pieces: &[&[u8]]) -> Vec<u8> {
        let mut lines = Lines::of(12);
        let mut text = Vec::new();
        pieces.iter().for_each(|piece| lines.push(piece, &mut text));
        lines.finish(&mut text);
        text
    }

    #[test]
    fn lines_do_not_depend_on_the_pieces_that_they_come_in() {
        let whole = b"one\n\ntw\xff o\nthree";
        let expected = b"[PE 12] one\n[PE 12] \n[PE 12] tw\xff o\n[PE 12] three\n";
        for size in 1..=whole.len() {
            assert_eq!(prefixed(&whole.chunks(size).collect::<Vec<_>>()), expected, "{size}");
        }
        assert_eq!(prefixed(&[]), b"");
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut lines = Lines::of(0);
        let mut text = Vec::new();
        for _ in 0..5 * LONGEST / 4096 {
            lines.push(&[b'x'; 4096], &mut text);
            assert!(lines.begun.len() <= LONGEST);
        }
        lines.finish(&mut text);
        assert_eq!(text.iter().filter(|&&byte| byte == b'x').count(), 5 * LONGEST);
        assert_eq!(text.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"[PE 0] x")).count(), 5);
    }

    #[test]
    fn a_line_that_just_fits_is_not_cut() {
        let mut line = vec![b'x'; LONGEST - 1];
        line.push(b'\n');
        assert_eq!(prefixed(&[&line]).iter().filter(|&&byte| byte == b'\n').count(), 1);
    }
}
