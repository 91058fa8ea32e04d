package cmdline

import (
	"context"
	"fmt"
	"io"
	"os"
)

// MaxManifest bounds a manifest: the API server accepts no larger object.
const MaxManifest = 3 << 20

// ReadFile reads a file, or in for "-", until ctx ends: nobody may write to a terminal or a pipe. The error for more than most bytes says what is too large.
func ReadFile(ctx context.Context, in io.Reader, file string, most int, tooLarge string) (data []byte, err error) {
	read := make(chan struct{})
	var text []byte
	var fault error
	go func() {
		defer close(read)
		text, fault = readFile(in, file, most, tooLarge)
	}()
	select {
	case <-read:
		return text, fault
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", file, context.Cause(ctx))
	}
}

func readFile(in io.Reader, file string, most int, tooLarge string) ([]byte, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // only read
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", file, err)
	case len(data) > most:
		return nil, fmt.Errorf("read %s: %s", file, tooLarge)
	}
	return data, nil
}
