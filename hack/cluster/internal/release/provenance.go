package release

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
)

// ProvenanceFile says of every other file but the checksums what it was built from: an in-toto statement with SLSA's predicate.
const ProvenanceFile = "provenance.intoto.json"

// The types of the statement: https://slsa.dev/spec/v1.0/provenance.
const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = "urn:istio-pod-network-controller:hack/release.sh:v1"
)

// writeProvenance writes what anybody finds who builds the commit again: the statement has no time but the commit's, and no machine.
func (r Release) writeProvenance() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	type object = map[string]any
	var subjects []object
	for _, s := range sums {
		subjects = append(subjects, object{"name": s.name, "digest": object{"sha256": s.sum}})
	}
	commit := object{"uri": "git+" + r.Source, "digest": object{"gitCommit": r.Revision}}
	toolchain := object{"uri": "pkg:generic/go@" + r.Go, "name": "go"}
	statement := object{
		"_type": statementType, "subject": subjects, "predicateType": predicateType,
		"predicate": object{
			"buildDefinition": object{
				"buildType": buildType, "externalParameters": object{"source": commit, "version": r.Version},
				"resolvedDependencies": []object{commit, toolchain},
			},
			"runDetails": object{
				"builder":  object{"id": buildType},
				"metadata": object{"invocationId": r.Revision},
			},
		},
	}
	text, err := json.MarshalIndent(statement, "", "  ")
	if err != nil {
		return fmt.Errorf("write the provenance: %w", err)
	}
	return writeFile(filepath.Join(r.Output, ProvenanceFile), func(to io.Writer) error {
		_, err := to.Write(append(text, '\n'))
		return err
	})
}
