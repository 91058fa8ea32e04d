package shared

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"istio-pod-network-controller/sidecars"
)

// rendered is a configuration as text.
type rendered struct {
	files   map[string]string
	version string
}

// versionBytes is how much of a hash makes a version.
const versionBytes = 8

// render returns the profile's files for members. The version is a hash of them, in which the version itself is zeros: equal files have equal
// versions, whichever agent has rendered them.
func render(p *sidecars.Profile, node string, members []member) (rendered, error) {
	data := sidecars.SharedData{Node: node, Version: strings.Repeat("0", 2*versionBytes)}
	for _, m := range ordered(members) {
		data.Pods = append(data.Pods, m.Data)
	}
	files, err := p.RenderShared(data)
	if err != nil {
		return rendered{}, err
	}
	text, err := json.Marshal(files)
	if err != nil {
		return rendered{}, fmt.Errorf("sum up files: %w", err)
	}
	sum := sha256.Sum256(text)
	data.Version = hex.EncodeToString(sum[:versionBytes])
	if files, err = p.RenderShared(data); err != nil {
		return rendered{}, err
	}
	return rendered{files: files, version: data.Version}, nil
}

// whyNot says to a pod's owner why its data could not be rendered.
func whyNot(err error, others int) string {
	if errors.Is(err, sidecars.ErrTooLarge) {
		return fmt.Sprintf("the files for %d pods leave no room for this one: %v", others, err)
	}
	return err.Error()
}
