from .algebra import (
    EDGE_KINDS as EDGE_KINDS,
    EdgeAlgebra as EdgeAlgebra,
    LiteratureAlgebra as LiteratureAlgebra,
    UnitAwareAlgebra as UnitAwareAlgebra,
)
from .beyond import (
    EdgeStep as EdgeStep,
    FaceStep as FaceStep,
    FineResult as FineResult,
    replay_edges as replay_edges,
    replay_faces as replay_faces,
)
from .cache import (
    PlanCache as PlanCache,
    StoredText as StoredText,
)
from .chain import (
    ChainResult as ChainResult,
    ChainStage as ChainStage,
    ChainStep as ChainStep,
    chain_of as chain_of,
    find_chain_order as find_chain_order,
)
from .cost import (
    elimination_cost as elimination_cost,
    elimination_trace as elimination_trace,
)
from .errors import (
    InvalidGraphError as InvalidGraphError,
    InvalidObjectiveError as InvalidObjectiveError,
    InvalidOrderError as InvalidOrderError,
    PlannerError as PlannerError,
)
from .exact import (
    find_edge_order as find_edge_order,
    find_face_order as find_face_order,
)
from .graph import EliminationGraph as EliminationGraph
from .heuristics import (
    HEURISTICS as HEURISTICS,
    heuristic_order as heuristic_order,
)
from .native import cache_folder as cache_folder
from .objectives import (
    OBJECTIVES as OBJECTIVES,
    Objective as Objective,
)
from .portfolio import (
    ORDERS as ORDERS,
    find_order as find_order,
)
from .program import (
    Program as Program,
    ProgramStep as ProgramStep,
    edge_program as edge_program,
    face_program as face_program,
)
from .result import OrderResult as OrderResult
from .search import (
    Annealing as Annealing,
    Auto as Auto,
    Beam as Beam,
    EdgeSearch as EdgeSearch,
    FaceSearch as FaceSearch,
    Heuristic as Heuristic,
    HyperPlanner as HyperPlanner,
    Optimal as Optimal,
    Strategy as Strategy,
    WindowDP as WindowDP,
)
from .state import (
    EliminationState as EliminationState,
    EliminationStep as EliminationStep,
    Update as Update,
)
