//! What a call computes: mask, lengths and scale.

use longreach_plan::Mask;

/// An attention over a whole sequence, all of whose PEs describe it alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub(crate) mask: Mask,
    pub(crate) q_len: usize,
    pub(crate) kv_len: usize,
    pub(crate) scale: Option<f32>,
}

impl Attention {
    /// Self-attention over `tokens` tokens (of all PEs together).
    pub fn new(mask: Mask, tokens: usize) -> Self {
        Self::cross(mask, tokens, tokens)
    }

    /// Attention of `q_len` queries over `kv_len` keys; diagonals are aligned bottom-right.
    pub fn cross(mask: Mask, q_len: usize, kv_len: usize) -> Self {
        Self { mask, q_len, kv_len, scale: None }
    }

    /// The same with scores `scale * q.k`; otherwise the scale is head_dim^-0.5. Must be finite.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// The scale of scores for queries of `head_dim` elements.
    pub fn scale_for(&self, head_dim: usize) -> f32 {
        self.scale.unwrap_or((head_dim as f32).sqrt().recip())
    }

    /// The mask.
    pub fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Queries of all PEs.
    pub fn q_len(&self) -> usize {
        self.q_len
    }

    /// Keys of all PEs.
    pub fn kv_len(&self) -> usize {
        self.kv_len
    }
}
