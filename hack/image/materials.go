package image

import (
	"bytes"
	"debug/buildinfo"
	"io"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// MaterialsType is the media type of a software bill of materials.
const MaterialsType types.MediaType = "application/vnd.cyclonedx+json"

// Materials is the software bill of materials of a program, in CycloneDX's JSON: which modules it was built from, as
// the linker has left it in there.
func Materials(program, version string, at time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	component := func(kind cyclonedx.ComponentType, name, version string) cyclonedx.Component {
		url := "pkg:golang/" + name + "@" + version
		return cyclonedx.Component{BOMRef: url, Type: kind, Name: name, Version: version, PackageURL: url}
	}
	bom := cyclonedx.NewBOM()
	main := component(cyclonedx.ComponentTypeApplication, info.Path, version)
	bom.Metadata = &cyclonedx.Metadata{Timestamp: at.UTC().Format(time.RFC3339), Component: &main}
	modules := []cyclonedx.Component{
		component(cyclonedx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go")),
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, component(cyclonedx.ComponentTypeLibrary, m.Path, m.Version))
	}
	bom.Components = &modules
	var out bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}

// Attach makes the artifact that attaches a bill of materials to an image: a manifest whose subject is the image
// (OCI image specification 1.1, referrers).
func Attach(materials []byte, to v1.Image) (v1.Image, error) {
	subject, err := partial.Descriptor(to)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), MaterialsType)
	artifact, err := mutate.AppendLayers(base, static.NewLayer(materials, MaterialsType))
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}

func opener(content []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
}
