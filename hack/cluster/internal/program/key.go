package program

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// key names a directory by everything that decides what the programs in it are: the pins, the recipes, the flags, the compiler.
func key(goVersion, ldflags string, recipes []Recipe, pins string) (string, error) {
	h := sha256.New()
	// The recipes' own order counts, which costs a rebuild at most.
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n%+v\n", goVersion, ldflags, tags, Gcflags, recipes)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(pins, name))
		if err != nil {
			return "", fmt.Errorf("read the pins: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
