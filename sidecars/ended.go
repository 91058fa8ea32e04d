package sidecars

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// RemoveEnded removes the homes of sandboxes that have ended, and returns their names. It is for nodes without an agent: an agent removes them by
// itself. A sandbox that is not ready never becomes ready again, so beside an agent it does no harm.
func (h Homes) RemoveEnded(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error), dryRun bool) (removed []string, err error) {
	entries, err := os.ReadDir(h.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list what proxies have left: %w", err)
	}
	for _, e := range entries {
		_, sandbox, ok := strings.Cut(e.Name(), ".")
		if !ok || !e.IsDir() {
			continue
		}
		runs, err := ready(ctx, sandbox)
		if err != nil {
			return removed, err
		}
		if runs {
			continue
		}
		if !dryRun {
			if err := (home{filepath.Join(h.Root, e.Name())}).remove(); err != nil {
				return removed, fmt.Errorf("remove what a proxy has left: %w", err)
			}
		}
		removed = append(removed, e.Name())
	}
	return removed, nil
}
