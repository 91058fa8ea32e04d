package release

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// SBOMDir is where the SBOMs are in a release.
const SBOMDir = "sbom"

// writeSBOMs copies the SBOMs, without what depends on the machine that made them.
func (r Release) writeSBOMs() error {
	files, err := filepath.Glob(filepath.Join(r.SBOMs, "*.json"))
	if err != nil || len(files) == 0 {
		return errors.Join(errors.New("no SBOM in "+r.SBOMs), err)
	}
	if err := os.MkdirAll(filepath.Join(r.Output, SBOMDir), 0o755); err != nil {
		return fmt.Errorf("make the directory of SBOMs: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read SBOM: %w", err)
		}
		fixed, err := fixSBOM(text, r.Time)
		if err != nil {
			return fmt.Errorf("SBOM %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(r.Output, SBOMDir, filepath.Base(file)), fixed, 0o644); err != nil {
			return fmt.Errorf("write SBOM: %w", err)
		}
	}
	return nil
}

// fixSBOM replaces the time of day, and leaves out the checksums of the tool that wrote the file: they are other ones on another
// architecture. The tool's name and version stay.
func fixSBOM(text []byte, at time.Time) ([]byte, error) {
	var sbom map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&sbom); err != nil {
		return nil, err
	}
	metadata, ok := sbom["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("no metadata")
	}
	if _, ok := sbom["serialNumber"]; ok {
		return nil, errors.New("it has a serial number, which differs each time")
	}
	metadata["timestamp"] = at.UTC().Format(time.RFC3339)
	tools, ok := metadata["tools"].([]any)
	if !ok {
		return nil, errors.New("no metadata.tools")
	}
	for _, t := range tools {
		if tool, ok := t.(map[string]any); ok {
			delete(tool, "hashes")
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(sbom)
	return out.Bytes(), err
}
