package program

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// key names a directory by everything that decides what the programs in it are: both modules' pins, the recipes, the compiler.
func key(goVersion string, recipes []Recipe, moduleDirs ...string) (string, error) {
	h := sha256.New()
	// The recipes' own order counts, which costs a rebuild at most.
	fmt.Fprintf(h, "%s\n%+v\n", goVersion, recipes)
	for _, dir := range moduleDirs {
		for _, name := range []string{"go.mod", "go.sum"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return "", fmt.Errorf("read the pins: %w", err)
			}
			fmt.Fprintf(h, "%s %d\n", name, len(text))
			h.Write(text)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
