package shared

import (
	"context"
	"strings"
	"testing"
	"time"
)

// The runtime takes the signal for the proxy, and does not return. Pods that wait for it say so.
func TestRound_runtimeHangs_saysSo(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	h.change(func() { h.telling = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } })
	b := h.join("b")[0]
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := h.round(ctx)
	if got := h.status(b).Message; err == nil || !strings.Contains(got, "the agent cannot change the shared proxy's configuration, and tries again") {
		t.Errorf("error %v, said is %q", err, got)
	}
}
