package cmdline

import (
	"context"
	"errors"
	"io"
	"testing"
)

// Ctrl-C ends a command whose input nobody writes.
func TestReadFile_inputThatNeverComes_endsWithTheContext(t *testing.T) {
	in, writer := io.Pipe()
	defer writer.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	if data, err := ReadFile(ctx, in, "-", 10, "too large"); !errors.Is(err, interrupted) || data != nil {
		t.Errorf("%q, error %v", data, err)
	}
}
